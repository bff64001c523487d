// Long names in code may break between their parts, and never within a word or after the dashes of an option.
const parts = /,(?=\S)|(?<=\w)[/=:]+(?=[a-z&'"])|\.(?=[a-z]\w{5})/gi
for (const code of document.querySelectorAll(".md-typeset :not(pre) > code")) {
  const cell = code.closest("td, th")
  if (/ .{40}/.test(code.textContent)) cell?.classList.add("command")
  let text = code.innerHTML
  if (cell || /\S{32}/.test(code.textContent)) text = text.replace(parts, "$&<wbr>")
  if (cell) text = text.replace(/(?<=[a-z0-9])_(?=[a-z])/gi, "_<wbr>")
  code.innerHTML = text.replace(/(?<![\w-])--?[a-z][\w-]*/gi, '<span style="white-space: nowrap">$&</span>')
}
