// A skill that a model wrote for alice: what do her open orders cost in another currency?
interface Order {
  item: string;
  cents: number;
}
interface Input {
  currency: string;
}

export default async function (input: Input, env: any) {
  const [orders, answer] = await Promise.all([
    env.DB.query("select item, cents from orders where paid = 0 order by item"),
    fetch("https://api.demo.test/v1/rates?base=EUR"),
  ]);
  if (!answer.ok) {
    throw new Error(`the rates service answered ${answer.status}`);
  }
  const rate: number = (await answer.json()).rates[input.currency];
  env.LOG.info("rates fetched", { currency: input.currency, rate });
  const cents = orders.reduce((sum: number, o: Order) => sum + o.cents, 0);
  return { orders: orders.length, currency: input.currency, total: (cents * rate) / 100 };
}
