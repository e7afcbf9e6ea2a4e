# The files of a site in R: TOML, the rows in CSV as accord reads them in Python, and the coding of columns.
# accord-site.R reads this file. It needs base R and the package jsonlite. No message quotes a cell.

fail <- function(...) stop(structure(class = c("wrong", "error", "condition"),
                                     list(message = paste0(...), call = NULL)))
`%or%` <- function(x, other) if (is.null(x)) other else x
sorted <- function(x) sort(x, method = "radix")
empty <- function() setNames(list(), character())
# A text of another site as one short line.
cleaned <- function(x) {
  x <- iconv(substr(x, 1, 1001), "UTF-8", "UTF-8", sub = " ")
  x <- gsub("[\\p{C}\\p{Zl}\\p{Zp}]", " ", x, perl = TRUE)
  ifelse(nchar(x) > 1000, paste0(substr(x, 1, 1000), " ..."), x)
}
json <- function(x) enc2utf8(as.character(toJSON(x, auto_unbox = TRUE, null = "null", digits = I(17))))
# An error that this program does not expect. The messages of R may quote a cell.
error_of_r <- function(e) {
  call <- conditionCall(e)
  paste0("an error of R", if (is.call(call) && is.name(call[[1]])) paste0(" in ", as.character(call[[1]])))
}

bytes_of_file <- function(path) {
  if (!file.exists(path) || dir.exists(path)) fail("there is no file ", path)
  tryCatch(readBin(path, "raw", file.size(path)), error = function(e) fail(path, " cannot be read"))
}
text_of_file <- function(path) {
  bytes <- bytes_of_file(path)
  if (any(bytes == 0)) fail(path, " is not UTF-8 text")
  text <- rawToChar(bytes)
  Encoding(text) <- "UTF-8"
  if (!validUTF8(text)) fail(path, " is not UTF-8 text")
  gsub("\r\n", "\n", sub("^\ufeff", "", text), fixed = TRUE)
}

# --- the common part of TOML: values are translated to JSON ---

read_toml <- function(path) {
  text <- text_of_file(path)
  tokens <- regmatches(text, gregexpr(
    "\"([^\"\\\\\n]|\\\\.)*\"|'[^'\n]*'|#[^\n]*|[][{},=\n]|[^][{},=#\"'\\s]+", text,
    perl = TRUE))[[1]]
  if (gsub("\\s", "", paste(tokens, collapse = "")) != gsub("\\s", "", text)) fail(path, ": a text does not end")
  tokens <- c(tokens[!grepl("^#", tokens)], "\n")
  bad <- function(line) fail(path, " is not the TOML that a site with R reads: see `", paste(line, collapse = " "), "`")
  literal <- function(x) vapply(x, function(one) if (grepl("^'", one)) json(gsub("^'|'$", "", one)) else one, "")
  path_of <- function(one) if (grepl("^[\"']", one)) fromJSON(literal(one)) else strsplit(one, ".", fixed = TRUE)[[1]]
  put <- function(table, at, value) {
    if (length(at) == 1 && at %in% names(table)) bad(c(at, "twice"))
    table[at[1]] <- list(if (length(at) == 1) value else put(table[[at[1]]] %or% empty(), at[-1], value))
    table
  }
  depth <- cumsum(tokens %in% c("[", "{")) - cumsum(tokens %in% c("]", "}"))
  root <- empty()
  section <- NULL
  sections <- character()
  for (at in split(seq_along(tokens), cumsum(c(0, head(tokens == "\n" & depth == 0, -1))))) {
    line <- tokens[at[tokens[at] != "\n"]]
    if (!length(line)) next
    if (line[1] == "[" && length(line) == 3) {
      section <- path_of(line[2])
      if (line[2] %in% sections) bad(c(line, "twice"))
      sections <- c(sections, line[2])
      if (is.null(tryCatch(root[[section]], error = function(e) NULL))) root <- put(root, section, empty())
      next
    }
    if (length(line) < 3 || line[2] != "=") bad(line)
    value <- literal(line[-(1:2)])
    names_here <- which(value == "=") - 1
    value[names_here] <- ifelse(grepl("^\"", value[names_here]), value[names_here], paste0("\"", value[names_here],
        "\""))
    value[value == "="] <- ":"
    number <- grepl("^[+-]?[0-9]", value)
    value[number] <- gsub("^[+]|_", "", value[number])
    text <- gsub(",\\s*([]}])", "\\1", paste(value, collapse = " "))
    value <- tryCatch(fromJSON(paste0("[", text, "]"), simplifyVector = FALSE)[[1]], error = function(e) bad(line))
    root <- put(root, c(section, path_of(line[1])), value)
  }
  root
}

# --- CSV as Python's csv module reads it: a quotation mark opens a cell only at its beginning, and errors end it ---

# What Python strips, and the ends of lines that it knows within cells.
SPACE <- "[\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
BREAK <- "\r\n|[\n-\r\u001c-\u001e\u0085\u2028\u2029]"
SEPARATORS <- c("," = "commas", ";" = "semicolons", "\t" = "tabs", "|" = "bars", " " = "spaces")
LONGEST <- 131072                      # characters of a cell

stripped <- function(x) gsub(paste0("^", SPACE, "+|", SPACE, "+$"), "", x, perl = TRUE)

# Lines of a file, and what ends them.
lines_of <- function(bytes) {
  if (identical(head(bytes, 3), as.raw(c(0xef, 0xbb, 0xbf)))) bytes <- bytes[-(1:3)]
  cr <- bytes == 13
  lf <- bytes == 10
  end <- which(cr | (lf & !c(FALSE, head(cr, -1))))
  lines <- strsplit(rawToChar(bytes), "\r\n|\r|\n", perl = TRUE, useBytes = TRUE)[[1]]
  list(text = lines, end = c(ifelse(cr[end], ifelse(c(lf[-1], FALSE)[end], "\r\n", "\r"), "\n"), "")[seq_along(lines)])
}

# Cells of all rows one after another, with the number of cells, the first and the last line of each row.
cells_of <- function(lines, separator) {
  text <- lines$text
  s <- sprintf("\\x%02x", utf8ToInt(separator))
  # the rest of a quoted cell, a whole cell, and lines that end within a quoted cell or not
  rest <- "[^\"]*+(?:\"\"[^\"]*+)*+"
  cell <- paste0(" *+(?:\"", rest, "\"|(?!\")(?:[^ ", s, "][^", s, "]*+)?+)")
  begin <- c(paste0("^", cell), paste0("^", rest, "\""))
  opened <- paste0(s, " *+\"", rest, "$")
  matches <- function(pattern) grepl(pattern, text, perl = TRUE, useBytes = TRUE)
  quoted <- matches("\"")
  within <- logical(length(text))
  if (any(quoted)) {
    more <- paste0("(?:", s, cell, ")*+")
    closes <- lapply(begin, function(one) matches(paste0(one, more, "$")))
    opens <- list(matches(paste0("^(?:", cell, s, ")*+ *+\"", rest, "$")),
                  matches(paste0("^", rest, "(?:\"", more, opened, ")?+$")))
    is_open <- FALSE
    for (k in seq_along(text)) {
      now <- opens[[1 + is_open]][k]
      if (!now && !closes[[1 + is_open]][k])
        fail("line ", k, " cannot be read as CSV: after a quoted cell, there must be a separator or the line's end")
      within[k] <- is_open <- now
    }
    if (is_open) fail("line ", length(text), " cannot be read as CSV: a quoted cell has no end")
  }
  last <- which(!within)
  first <- c(1, last[-length(last)] + 1)[seq_along(last)]
  long <- last > first
  rows <- text[last]
  rows[long] <- mapply(function(from, to)
    paste0(c(rbind(text[from:to], c(lines$end[from:(to - 1)], ""))), collapse = ""), first[long], last[long])
  quoted <- grepl("\"", rows, fixed = TRUE, useBytes = TRUE) | separator == " "
  is_row <- rows != ""                 # an empty line is no row
  parts <- vector("list", length(rows))
  ended <- paste0(rows, separator)
  parts[!quoted] <- strsplit(ended[!quoted], separator, fixed = TRUE, useBytes = TRUE)
  parts[quoted] <- regmatches(ended[quoted], gregexpr(paste0(" *+(?:\"", rest, "\"|[^", s, "]*+)", s), ended[quoted],
                                                      perl = TRUE, useBytes = TRUE))
  parts <- parts[is_row]
  count <- lengths(parts)
  cells <- unlist(parts, use.names = FALSE) %or% character()
  own <- rep(quoted[is_row], count)
  cells[own] <- sub(paste0(s, "$"), "", cells[own], perl = TRUE, useBytes = TRUE)
  own[own] <- grepl("^ *\"", cells[own], perl = TRUE, useBytes = TRUE)
  cells[own] <- gsub("\"\"", "\"", sub("(?s)^ *\"(.*)\"$", "\\1", cells[own], perl = TRUE, useBytes = TRUE),
                     fixed = TRUE, useBytes = TRUE)
  Encoding(cells) <- "UTF-8"
  if (any(nchar(cells) > LONGEST)) fail("a cell has more than ", LONGEST, " characters")
  list(cells = stripped(cells), count = count, first = first[is_row], last = last[is_row])
}

some_lines <- function(lines) paste0(if (length(lines) == 1) "line " else "lines ", paste(head(lines, 5),
  collapse = ", "), if (length(lines) > 5) paste(" and", length(lines) - 5, "more"),
  if (length(lines) == 1) " has" else " have")

# Header, cells and lines of a file. Each row has as many cells as the header.
table_of <- function(lines, separator) {
  found <- cells_of(lines, separator)
  from <- cumsum(found$count) - found$count + 1
  head <- which(!grepl("^sep=.?$", found$cells[from], perl = TRUE))[1]   # Excel may name the separator above
  if (is.na(head)) fail("the file is empty")
  columns <- found$count[head]
  rows <- seq_along(found$count) > head
  holds_rows <- function(cell) {
    inner <- strsplit(cell, BREAK, perl = TRUE)[[1]]
    inner <- inner[-c(1, length(inner))]
    columns > 1 && length(inner) &&
      all(lengths(regmatches(inner, gregexpr(separator, inner, fixed = TRUE))) == columns - 1)
  }
  for (k in which(rows & found$last - found$first > 1))
    if (any(vapply(found$cells[from[k] + seq_len(found$count[k]) - 1], holds_rows, NA))) fail(
      "the quoted cell that ends in line ", found$last[k], " holds whole rows: is a quotation mark missing or extra?")
  wrong <- which(rows & found$count != columns)
  times <- table(found$count[wrong])
  usual <- as.numeric(names(which.max(times)))
  at <- which(rows & found$count == max(usual, 0))
  # a column has a name in letters and only numbers below
  has_names <- function() any(vapply(seq_len(usual) - 1, function(k) {
    below <- setdiff(found$cells[from[at[-1]] + k], c("", "NA"))
    length(below) && all(is_number(below)) && grepl("^[[:alpha:]]", found$cells[from[at[1]] + k])
  }, NA))
  list(header = found$cells[from[head] + seq_len(columns) - 1], lines = found$last[rows], ragged = found$last[wrong],
       more = found$count[wrong] > columns, all_longer = all(found$count[rows] == columns + 1),
       parted = mean(found$count > 1),   # the share of lines with several cells
       # a table below other text
       is_below = length(wrong) > 0 && max(times) > sum(rows) - length(wrong) && usual > columns &&
         (usual > columns + 1 || has_names()),
       cells = if (!length(wrong)) matrix(found$cells[rep(rows, found$count)], ncol = columns, byrow = TRUE))
}

parse_csv <- function(bytes, separator) {
  starts <- function(...) identical(head(bytes, ...length()), as.raw(c(...)))
  if (starts(0x1f, 0x8b) || starts(0x50, 0x4b, 3, 4) || starts(0x50, 0x41, 0x52, 0x31))
    fail("the file is compressed, a workbook or Parquet, not text: save it as CSV")
  if (starts(0xff, 0xfe) || starts(0xfe, 0xff)) fail("the file is UTF-16 text: a site with R reads UTF-8 only")
  if (any(bytes == 0)) fail("the file has NUL characters, as UTF-16 text has: a site with R reads UTF-8 text only")
  if (!validUTF8(rawToChar(bytes))) fail("the file is not UTF-8 text: a site with R reads UTF-8 only")
  lines <- lines_of(bytes)
  found <- table_of(lines, separator)
  columns <- length(found$header)
  if (length(found$ragged) || columns == 1) {
    shape <- paste0("the header has ", columns, if (columns == 1) " column" else " columns", if (length(found$ragged))
      paste0(", ", some_lines(found$ragged), " ", paste(c("more"[any(found$more)], "fewer"[!all(found$more)]),
                                                        collapse = " or "), " cells"))
    fits <- separator != "," && found$parted > 0.5
    for (other in if (!fits) setdiff(names(SEPARATORS), separator)) {
      parted <- tryCatch(table_of(lines, other), wrong = function(e) NULL)
      if (!is.null(parted) && (parted$is_below || length(parted$header) > 1 && !length(parted$ragged))) fail(
        shape, ". Are cells separated by ", SEPARATORS[[other]], "? Write separator = \"",
        sub("\t", "\\t", other, fixed = TRUE), "\" in [data]",
        if (parted$is_below) ", and delete lines above the table")
    }
    if (found$all_longer && length(found$ragged)) fail("all rows have one cell more than the header (", columns,
      "): name the column of row names, which R does with col.names = NA, or delete separators at the ends of rows")
    if (length(found$ragged)) fail(shape)
  }
  named <- found$header[found$header != ""]
  if (any(is_number(named)))
    fail("the name of column ", which(is_number(found$header))[1], " is a number: is the header missing? If it is ",
         "a name, begin it with a letter, such as y2019")
  if (anyDuplicated(named)) fail(
    "columns ", paste(which(found$header == named[anyDuplicated(named)]), collapse = " and "), " have the same name")
  if (!length(named)) fail("no column has a name")
  if (!length(found$lines)) fail("there are no rows below the header")
  columns <- lapply(which(found$header != ""), function(k) found$cells[, k])
  list(columns = setNames(columns, named), lines = found$lines)
}

# The file of a site, read once: its hash, columns and lines, or the problem with it.
read_sheet <- function(study, policy) {
  bytes <- bytes_of_file(policy$data)
  where <- paste0(policy$site, " (", basename(policy$data), ")")
  separator <- if (is.list(study$separator)) study$separator[[policy$site]] %or% "," else study$separator
  found <- tryCatch(parse_csv(bytes, separator), error = function(e) list(lines = integer(), columns = empty(),
    problem = paste0(where, ": ", if (inherits(e, "wrong")) conditionMessage(e)
                     else paste(error_of_r(e), "while reading the file"))))
  c(found, list(where = where, hash = hex(bytes)))
}

# --- the coding of columns ---

# What Python reads as a number, with the digits of all scripts.
is_number <- function(x) grepl("^[+-]?((\\d+[.]?\\d*|[.]\\d+)(e[+-]?\\d+)?|inf|infinity|nan)$",
                               gsub("\\p{Nd}", "0", enc2utf8(x), perl = TRUE), perl = TRUE, ignore.case = TRUE)
level_of <- function(x) sub("^([+-]*[0-9]+)[.]0$", "\\1", x)
natural <- function(x) {               # sorted, with runs of digits by value
  key <- vapply(x, function(one) {
    part <- regmatches(one, gregexpr("[0-9]+|[^0-9]+", one))[[1]]
    paste(ifelse(grepl("^[0-9]", part), sprintf("\001%020.0f\001%s", suppressWarnings(as.numeric(part)), part),
                 paste0("\002", part)), collapse = "\003")
  }, "")
  as.character(x)[order(ifelse(grepl("^\001", key), paste0("\002\003", key), key), method = "radix")]
}

read_column <- function(study, name, cells) {
  codes <- suppressWarnings(as.numeric(study$blanks[is_number(study$blanks)]))
  numeric <- is_number(cells)
  numbers <- suppressWarnings(as.numeric(ifelse(numeric, cells, NA)))
  absent <- cells %in% study$blanks | numbers %in% codes[is.finite(codes)]
  has <- !absent
  unclear <- function(rows, problem) list(kind = "unclear", values = cells, absent = absent, rows = rows,
      problem = problem)
  column <- function(kind, values) list(kind = kind, values = values, absent = absent)
  if (all(absent)) return(column("empty", rep(NA_real_, length(cells))))
  if (name %in% names(study$positive)) {
    ones <- level_of(cells) %in% level_of(study$positive[[name]])
    others <- unique(level_of(cells)[has & !ones])
    usual <- names(sort(table(level_of(cells)[has & !ones]), decreasing = TRUE))[1]
    if (length(others) > 1) return(if (any(ones)) unclear(which(has & !ones & level_of(cells) != usual),
      "a third text besides the two of a yes-no column: name all spellings of 1 in positive")
      else unclear(which(has & !ones), "several texts, none of them in positive"))
    return(column("yes-no", ifelse(has, as.numeric(ones), NA)))
  }
  factor <- function() if (length(unique(cells[has])) > 5000) unclear(which(has), "more than 5,000 different texts")
    else column("factor", ifelse(has, level_of(cells), ""))
  if (name %in% c(study$strings, study$terms$factors)) return(factor())
  if (all(tolower(cells[has]) %in% c("true", "false")))
    return(column("yes-no", ifelse(has, as.numeric(tolower(cells) == "true"), NA)))
  strange <- has & numeric & !is.finite(numbers)
  if (any(strange)) return(unclear(which(strange), "no finite number in digits from 0 to 9"))
  if (all(numeric[has]))
    return(column(if (all(numbers[has] %in% 0:1)) "yes-no" else "number", ifelse(has, numbers, NA)))
  if (all(grepl("^[0-9]{1,4}[-./ ]([0-9]{1,2}|[A-Za-z]{3})[-./ ][0-9]{1,4}", cells[has])))
    return(unclear(which(has), "dates: a site with R reads them only as texts, named in strings"))
  if (all(grepl("^[+-]?[0-9., '\u00a0\u202f\u2009\u2019]*[0-9][0-9., '\u00a0\u202f\u2009\u2019]*([eE][+-]?[0-9]+)?$",
                cells[has]))) return(unclear(which(has & !numeric),
    "numbers in another format: a site with R reads numbers such as 1234.5 only"))
  if (!any(numeric[has])) return(factor())
  unclear(which(has & !numeric), "a text where others have numbers, or a number where others have texts")
}

kind_of <- function(x) if (is.null(x)) "null" else if (is.character(x)) "text" else
  if (is.logical(x)) "true or false" else if (!is.list(x)) "a number" else if (is.null(names(x))) "a list" else
  if (all(c("shape", "type") %in% names(x))) "an array" else "a dictionary"
# Fail unless the content of another site has the types of this site's own one, as in accord.federation.entry.
require_like <- function(found, own, where, field = "content") {
  kinds <- c(kind_of(found), kind_of(own))
  counts <- setequal(kinds, c("text", "a number")) && grepl(" (missing|dropped)$", field)
  if (kinds[1] != kinds[2] && !counts)
    fail(where, " has another content than accord writes: ", cleaned(field), " is ", kinds[1], ", not ", kinds[2])
  texts <- all(vapply(own, is.character, NA))
  if (kinds[2] == "a dictionary" && !setequal(names(found), names(own)) && !texts)
    fail(where, " has another content than accord writes: ", cleaned(field), " has other keys")
  if (is.list(own) && kinds[2] != "an array") for (k in seq_along(found)) {
    like <- if (!is.null(names(own))) own[[names(found)[k]]] else own[if (k <= length(own)) k else 1][[1]]
    if (!length(own) || (texts && is.null(like))) like <- ""
    require_like(found[[k]], like, where, paste(field, names(found)[k] %or% k))
  }
}
