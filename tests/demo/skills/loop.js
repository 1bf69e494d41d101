export default async function () {
  for (;;) {}
}
