export default async function () {
  const hoard = [];
  for (;;) hoard.push(new Uint8Array(1 << 20).fill(1));
}
