// Serves fauxqs on a free port of the loopback interface (its own command listens on all)
// until standard input ends, so that it never outlives the test.
// argv: the path of fauxqs's dist/app.js. Output: one line, its address.
const { buildApp } = await import(process.argv[2]);
const app = buildApp({ logger: false });
console.log(await app.listen({ port: 0, host: "127.0.0.1" }));
process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
