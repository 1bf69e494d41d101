import { heading } from "./heading.js";
import "./style.css";

const show = (text) => {
  document.querySelector("#heading").textContent = text;
};

show(heading);
if (import.meta.hot) {
  import.meta.hot.accept("./heading.js", (next) => show(next.heading));
}
