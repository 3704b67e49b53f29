# Reads the names of C++ files that clang-format has formatted, and those files. Prints each qualified name of a class, union or enum that
# is defined several times in what can be one program, with the places, and then fails.
#
# It counts braces outside comments, literals and preprocessor lines. What is in an anonymous namespace, in a function or in a
# specialization is left out: no other file can name it, or it has the name of its template.

BEGIN {
  word = "[A-Za-z_][A-Za-z0-9_]*"
  class_head = "^(class|struct|union|enum|enum class|enum struct) " word "(::" word ")*( final)?( ?:.*)?$"
  while ((getline name < "-") > 0)
    ARGV[ARGC++] = name
}

# A line without its comments, and with "" for each literal. in_comment and raw_end say what goes on in the next line.
function code_of(text,    code, at) {
  code = ""
  while (text != "") {
    if (in_comment || raw_end != "") {
      at = index(text, in_comment ? "*/" : raw_end)
      if (!at)
        return code
      text = substr(text, at + (in_comment ? 2 : length(raw_end)))
      in_comment = 0
      raw_end = ""
    }
    if (!match(text, /["']|\/[\/*]/))
      return code text
    code = code substr(text, 1, RSTART - 1)
    text = substr(text, RSTART)
    if (text ~ /^\/\//)
      return code
    if (text ~ /^\//) {
      in_comment = 1
      text = substr(text, 3)
    } else if (text ~ /^"/ && code ~ /(^|[^A-Za-z0-9_])(u8|[uUL])?R$/ && match(text, /^"[^(]*\(/)) {
      raw_end = ")" substr(text, 2, RLENGTH - 2) "\""
      text = substr(text, RLENGTH + 1)
    } else if (text ~ /^'/ && code ~ /(^|[^A-Za-z0-9_])[0-9][0-9A-Za-z.]*$/) {
      text = substr(text, 2) # between digits
    } else if (match(text, /^"([^"\\]|\\.)*"/) || match(text, /^'([^'\\]|\\.)*'/)) {
      code = code "\"\""
      text = substr(text, RLENGTH + 1)
    } else {
      return code
    }
  }
  return code
}

# What stands before a brace, from its keyword on: without access specifiers, macros, template parameters and attributes.
function without_prefix(text,    before, angles, i, c) {
  gsub(/\[\[[^]]*\]\]|alignas\([^()]*\)/, "", text)
  gsub(/[ \t]+/, " ", text)
  do {
    before = text
    sub(/^ /, "", text)
    sub(/^(public|private|protected) ?: ?/, "", text)
    sub(/^[A-Z][A-Z0-9_]*(\([^()]*\))? /, "", text)
    if (text ~ /^template ?</) {
      angles = 0
      for (i = index(text, "<"); i <= length(text); i++) {
        c = substr(text, i, 1)
        angles += c == "<" ? 1 : c == ">" ? -1 : 0
        if (!angles)
          break
      }
      text = substr(text, i + 1)
    }
    if (text ~ /^requires / && match(text, / (class|struct|union) /))
      text = substr(text, RSTART)
  } while (text != before)
  sub(/ $/, "", text)
  return text
}

# The program that a file belongs to, or "" for libraries. Programs may use each other's names.
function program_of(file,    parts) {
  split(file, parts, "/")
  if (file ~ /^apps\/examples\//)
    return file
  if (file ~ /^apps\// && parts[2] != "command_line" || file ~ /^tools\/(troupe|fault_injection)\//)
    return parts[1] "/" parts[2]
  if (file ~ /^tools\/bench\//)
    return parts[4] != "" ? "tools/bench/" parts[3] : file
  return ""
}

function define(name) {
  # The branches of an #if are alternatives.
  if (else_branches && (name, FILENAME) in places_of)
    return
  places_of[name, FILENAME] = 1
  if (!count[name]++)
    names[++name_count] = name
  place[name, count[name]] = FILENAME ":" FNR
  program[name, count[name]] = program_of(FILENAME)
}

function open_brace(    text, kind) {
  text = head
  head = ""
  depth++
  if (ignored)
    return
  text = without_prefix(text)
  scope[depth] = scope[depth - 1]
  if (text ~ /^(inline )?namespace [A-Za-z_]/) {
    sub(/^(inline )?namespace /, "", text)
    scope[depth] = scope[depth] text "::"
  } else if (text ~ class_head) {
    kind = text
    sub(/ .*/, "", kind)
    sub(/^enum /, "", text)
    sub(/^(class|struct|union) /, "", text)
    match(text, /^[A-Za-z0-9_]+(::[A-Za-z0-9_]+)*/)
    scope[depth] = scope[depth] substr(text, 1, RLENGTH) "::"
    define(substr(scope[depth], 1, length(scope[depth]) - 2))
    if (kind == "enum")
      ignored = depth
  } else if (text !~ /^extern ""$/) {
    ignored = depth
  }
}

function close_brace() {
  if (ignored == depth)
    ignored = 0
  depth--
  head = ""
}

function begin_file() {
  if (file != "" && (depth || ifs || in_comment || raw_end != "")) {
    print file ": its braces cannot be followed"
    failed = 1
  }
  file = FILENAME
  depth = ignored = ifs = else_branches = in_comment = continued = 0
  raw_end = head = scope[0] = ""
}

# Each branch of an #if begins with the braces that are open before it.
function directive(text) {
  sub(/^[ \t]*#[ \t]*/, "", text)
  if (text ~ /^if/) {
    ifs++
    if_depth[ifs] = depth
    if_ignored[ifs] = ignored
    if_head[ifs] = head
    if_else[ifs] = 0
  } else if (text ~ /^el/) {
    depth = if_depth[ifs]
    ignored = if_ignored[ifs]
    head = if_head[ifs]
    else_branches += !if_else[ifs]
    if_else[ifs] = 1
  } else if (text ~ /^endif/) {
    else_branches -= if_else[ifs--]
  }
}

FNR == 1 { begin_file() }

!in_comment && raw_end == "" && (continued || /^[ \t]*#/) {
  if (!continued)
    directive($0)
  continued = /\\$/
  next
}

{
  rest = code_of($0)
  while (match(rest, ignored ? "[{}]" : "[{};]")) {
    mark = substr(rest, RSTART, 1)
    if (!ignored)
      head = head " " substr(rest, 1, RSTART - 1)
    rest = substr(rest, RSTART + 1)
    if (mark == "{")
      open_brace()
    else if (mark == "}")
      close_brace()
    else
      head = ""
  }
  if (!ignored)
    head = head " " rest
}

END {
  begin_file()
  for (i = 1; i <= name_count; i++) {
    name = names[i]
    for (j = 1; j <= count[name]; j++) {
      others = ""
      for (k = 1; k <= count[name]; k++)
        if (k != j && (program[name, j] == program[name, k] || program[name, j] == "" || program[name, k] == ""))
          others = others " " place[name, k]
      if (others != "") {
        print name " is defined several times: " place[name, j] others
        failed = 1
        break
      }
    }
  }
  exit failed
}
