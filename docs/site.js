// Long names in code may break between their parts, and never within a word or after the dashes of an option.
for (const code of document.querySelectorAll(".md-typeset :not(pre) > code")) {
  const cell = code.closest("td, th")
  if (/ .{40}/.test(code.textContent)) cell?.classList.add("command")
  if (cell || /\S{32}/.test(code.textContent))
    code.innerHTML = code.innerHTML
      .replace(/,(?=\S)|[/=:]+(?=[a-z&'"])|\.(?=[a-z]\w{5})|(?<=[a-z0-9])_(?=[a-z])/gi, "$&<wbr>")
  code.innerHTML = code.innerHTML.replace(/(?<![\w-])--?[a-z][\w-]*/gi, '<span style="white-space: nowrap">$&</span>')
}
