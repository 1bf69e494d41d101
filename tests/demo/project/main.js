import { marked } from "marked";

const text = `# It works

This page was **cloned**, **installed**, **built** and **served** in a jail.`;

document.querySelector("#app").innerHTML = marked.parse(text);
