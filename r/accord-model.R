# The model of a site in R: its study's formula, its rows, and the summaries that all sites agree on.
# accord-site.R reads this file. It needs base R and the package jsonlite.

FAMILIES <- c("normal", "bernoulli", "binomial", "poisson", "negative_binomial")
EXTRA <- c(normal = "sigma", negative_binomial = "concentration")
NAMES <- "`[^`]+`|[[:alpha:]_][[:alnum:]_.]*"
NAME <- paste0("(", NAMES, ")")

fail <- function(...) stop(structure(class = c("wrong", "error", "condition"),
                                     list(message = paste0(...), call = NULL)))
`%or%` <- function(x, other) if (is.null(x)) other else x
sorted <- function(x) sort(x, method = "radix")
empty <- function() setNames(list(), character())
json <- function(x) enc2utf8(as.character(toJSON(x, auto_unbox = TRUE, null = "null", digits = I(17))))

text_of_file <- function(path) {
  if (!file.exists(path) || dir.exists(path)) fail("there is no file ", path)
  text <- rawToChar(readBin(path, "raw", file.size(path)))
  Encoding(text) <- "UTF-8"
  if (!validUTF8(text)) fail(path, " is not UTF-8 text")
  gsub("\r\n", "\n", sub("^\ufeff", "", text), fixed = TRUE)
}

plain_name <- function(x) gsub("`", "", trimws(x), fixed = TRUE)

# The common part of TOML: values are translated to JSON.
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
  for (at in split(seq_along(tokens), cumsum(c(0, head(tokens == "\n" & depth == 0, -1))))) {
    line <- tokens[at[tokens[at] != "\n"]]
    if (!length(line)) next
    if (line[1] == "[" && length(line) == 3) {
      section <- path_of(line[2])
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

read_formula <- function(text) {
  unknown <- function(part) fail("the formula has the term ", part, ": a site with R knows columns, scale(column), ",
                                 "center(column) and C(column), joined by +, on the left also column['level'] and ",
                                 "prop(y, trials)")
  sides <- strsplit(text %or% "", "~", fixed = TRUE)[[1]]
  if (length(sides) != 2) fail("the formula must have one ~, found ", text)
  left <- trimws(sides[1])
  match <- function(pattern, x) regmatches(x, regexec(paste0("^", pattern, "$"), x))[[1]]
  if (length(found <- match(NAME, left))) response <- list(columns = plain_name(left))
  else if (length(found <- match(paste0(NAME, "\\s*\\[\\s*['\"]?([^'\"]+)['\"]?\\s*\\]"), left)))
    response <- list(columns = plain_name(found[2]), level = found[3])
  else if (length(found <- match(paste0("prop\\(\\s*", NAME, "\\s*,\\s*", NAME, "\\s*\\)"), left)))
    response <- list(columns = plain_name(found[2:3]))
  else unknown(left)
  terms <- list()
  for (part in trimws(strsplit(sides[2], "+", fixed = TRUE)[[1]])) {
    if (part == "1") next
    if (length(found <- match(NAME, part))) one <- list(kind = "plain", column = plain_name(part))
    else if (length(found <- match(paste0("(scale|center|C)\\(\\s*", NAME, "\\s*\\)"), part)))
      one <- list(kind = found[2], column = plain_name(found[3]))
    else unknown(part)
    terms <- c(terms, list(c(one, text = gsub("[ `]", "", part))))
  }
  if (anyDuplicated(terms)) fail("the formula has a term twice: ", text)
  if (any(response$columns %in% vapply(terms, `[[`, "", "column"))) fail("the response is also among the terms: ", text)
  mentioned <- plain_name(regmatches(text, gregexpr(NAMES, text))[[1]])
  list(response = response, terms = terms, mentioned = mentioned,
       factors = unlist(lapply(terms, function(x) if (x$kind == "C") x$column)))
}

# --- the rows ---

is_number <- function(x) grepl("^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$", x)
level_of <- function(x) sub("^([+-]*[0-9]+)[.]0$", "\\1", x)
natural <- function(x) {               # sorted, with runs of digits by value
  key <- vapply(x, function(one) {
    part <- regmatches(one, gregexpr("[0-9]+|[^0-9]+", one))[[1]]
    paste(ifelse(grepl("^[0-9]", part), sprintf("\001%020.0f\001%s", suppressWarnings(as.numeric(part)), part),
                 paste0("\002", part)), collapse = "\003")
  }, "")
  as.character(x)[order(ifelse(grepl("^\001", key), paste0("\002\003", key), key), method = "radix")]
}

read_sheet <- function(study, policy) {
  where <- paste0(policy$site, " (", basename(policy$data), ")")
  lines <- strsplit(text_of_file(policy$data), "\n", fixed = TRUE)[[1]]
  if (length(lines) && grepl("^sep=.?$", lines[1])) lines[1] <- ""
  separator <- if (is.list(study$separator)) study$separator[[policy$site]] %or% "," else study$separator
  cells <- tryCatch(read.table(text = lines, sep = separator, quote = "\"", colClasses = "character", comment.char = "",
                               na.strings = character(), strip.white = TRUE, fill = FALSE, encoding = "UTF-8"),
    error = function(e) fail(where, ": the file cannot be read as CSV: each row needs as many cells as the header, ",
                             "separated by \"", separator, "\" (separator in [data])"))
  header <- trimws(unlist(cells[1, ], use.names = FALSE))
  if (anyDuplicated(header[header != ""])) fail(where, ": two columns have one name")
  at <- which(nzchar(trimws(lines)))
  columns <- setNames(lapply(cells[-1, , drop = FALSE], trimws), header)[header != ""]
  list(where = where, columns = columns, lines = if (length(at) == nrow(cells)) at[-1] else seq_len(nrow(cells) - 1))
}

header_of <- function(study, policy) names(read_sheet(study, policy)$columns)

read_column <- function(study, name, cells) {
  codes <- suppressWarnings(as.numeric(study$blanks[is_number(study$blanks)]))
  numeric <- is_number(cells)
  numbers <- suppressWarnings(as.numeric(ifelse(numeric, cells, NA)))
  absent <- cells %in% study$blanks | numbers %in% codes
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
  if (any(is.infinite(numbers))) return(unclear(which(is.infinite(numbers)), "no finite float64 number"))
  if (all(numeric[has]))
    return(column(if (all(numbers[has] %in% 0:1)) "yes-no" else "number", ifelse(has, numbers, NA)))
  if (all(grepl("^[+-]?[0-9][0-9., ']*$", cells[has]))) return(unclear(which(has & !numeric),
    "numbers in another format: a site with R reads numbers such as 1234.5 only"))
  if (all(grepl("^[0-9]{1,4}[-./ ]([0-9]{1,2}|[A-Za-z]{3})[-./ ][0-9]{1,4}", cells[has])))
    return(unclear(which(has), "dates: a site with R reads them only as texts, named in strings"))
  if (!any(numeric[has])) return(factor())
  unclear(which(has & !numeric), "a text where others have numbers, or a number where others have texts")
}

singles_out <- function(x, cells) {
  x <- sort(x) / max(abs(x), .Machine$double.xmin)
  if (!length(x)) return(FALSE)
  most <- max(findInterval(x + 1e-3 * (max(x) - min(x)), x) - seq_along(x) + 1)
  length(x) > most && length(x) - most < cells
}

# --- the model, as all sites agree on it. `meeting` has gathered(own), total(numbers) and require(problems) ---

item <- function(x, shape = if (is.matrix(x)) list(ncol(x)) else list()) list(x = as.numeric(x), shape = shape)

mean_and_sd <- function(rows, first, second) {
  variance <- second / rows - (first / rows)^2
  list(mean = first / rows, sd = sqrt(ifelse(is.finite(variance), pmax(variance, 0), Inf)))
}
is_far <- function(own) abs(own$mean) > 100 * own$sd & !(own$mean == 1 & own$sd == 0)

means_and_sds <- function(meeting, values) {
  summed <- function(around) {
    own <- list()
    for (name in names(around)) {
      x <- as.matrix(values[[name]])
      x <- x - rep(around[[name]], each = nrow(x))
      shape <- if (is.matrix(values[[name]])) list(ncol(x)) else list()
      own[[paste("rows", name)]] <- item(nrow(x))
      own[[paste("sum", name)]] <- item(colSums(x), shape)
      own[[paste("squares", name)]] <- item(colSums(x^2), shape)
    }
    all <- meeting$total(own)
    sapply(names(around), simplify = FALSE, function(name)
      mean_and_sd(all[[paste("rows", name)]], all[[paste("sum", name)]], all[[paste("squares", name)]]))
  }
  found <- summed(sapply(names(values), simplify = FALSE, function(name) 0 * colSums(as.matrix(values[[name]]))))
  again <- lapply(Filter(function(own) any(is_far(own)), found), `[[`, "mean")
  if (length(again)) for (name in names(more <- summed(again)))
    found[[name]] <- list(mean = again[[name]] + more[[name]]$mean, sd = more[[name]]$sd)
  found
}

build_model <- function(study, policy, meeting, say) {
  sheet <- read_sheet(study, policy)
  site <- policy$site
  floors <- policy$floors
  problems <- character()
  note <- function(name, rows, what) {
    at <- sheet$lines[rows]
    say(sprintf("%s: column '%s': %d lines, such as %s, have %s", sheet$where, name, length(at),
                paste(head(at, 5), collapse = ", "), what))
    problems <<- c(problems, sprintf("%s: column '%s': some cells have %s. The site's own log lists the lines",
                                     sheet$where, name, what))
  }
  wanted <- study$columns %or% study$terms$mentioned
  header <- intersect(names(sheet$columns), wanted)
  table <- sapply(header, simplify = FALSE, function(name) read_column(study, name, sheet$columns[[name]]))
  for (name in header) if (!is.null(table[[name]]$problem)) note(name, table[[name]]$rows, table[[name]]$problem)
  heard <- meeting$gathered(list(header = as.list(header), kinds = lapply(table, `[[`, "kind")))
  shared <- character()
  kinds <- character()
  known <- unique(unlist(lapply(heard, `[[`, "header")))
  for (name in intersect(known, wanted)) {
    if (!name %in% header) {
      problems <- c(problems, sprintf("%s: there is no column '%s', which another site has", sheet$where, name))
      next
    }
    each <- setdiff(vapply(heard, function(own) own$kinds[[name]] %or% "unclear", ""), "empty")
    kind <- if (!length(each)) "empty" else if ("unclear" %in% each) "unclear"
      else if (setequal(each, c("number", "yes-no"))) "number"
      else if (length(unique(each)) == 1) each[1] else "conflict"
    if (kind == "conflict") shared <- c(shared, sprintf("column '%s' holds numbers and texts at different sites", name))
    else if (kind == "empty") shared <- c(shared, sprintf("column '%s': no cell of any site has a value", name))
    else if (kind != "unclear") kinds[name] <- kind
    if (table[[name]]$kind == "empty" && kind == "factor") table[[name]]$values <- rep("", length(table[[name]]$absent))
  }
  absent <- lapply(table[names(table) %in% names(kinds)], `[[`, "absent")
  rows <- length(sheet$lines)
  keep <- if (study$missing == "drop") !Reduce(`|`, absent, rep(FALSE, rows)) else rep(TRUE, rows)
  dropped <- sum(!keep)
  for (name in names(absent)) {
    table[[name]]$values <- table[[name]]$values[keep]
    if (any(absent[[name]] & keep))
      note(name, which(absent[[name]]), "no value: missing = \"drop\" leaves such rows out")
    table[[name]]$present <- table[[name]]$values[!absent[[name]][keep]]
  }
  rows <- sum(keep)
  factors <- names(kinds)[kinds == "factor"]
  counts <- sapply(factors, simplify = FALSE, function(name) table(table[[name]]$present))
  if (rows < floors$rows) problems <- c(problems, sprintf(
    "%s: refused, there are fewer than %d rows, the floor of the site (`rows` in its policy)", sheet$where,
        floors$rows))
  if (floors$rare == "refuse") for (name in factors) if (any(counts[[name]] < floors$cells))
    problems <- c(problems,
        sprintf("%s: column '%s': %d of %d levels have fewer than %d rows, the floor of the site: %s",
      sheet$where, name, sum(counts[[name]] < floors$cells), length(counts[[name]]), floors$cells,
      "merge levels, or leave the column out"))
  if (length(shared)) fail(paste(shared, collapse = "; "))
  meeting$require(problems)
  # summaries of the columns
  disclosed <- function(count) if (count > 0 && count < floors$cells) paste("<", floors$cells) else as.integer(count)
  numeric <- names(kinds)[kinds != "factor"]
  hidden <- if (floors$rare != "refuse") character() else Filter(function(name)
    singles_out(table[[name]]$present, floors$cells) || length(table[[name]]$present) %in% seq_len(floors$rows - 1),
        numeric)
  column_of <- function(name) {
    gone <- rows - length(table[[name]]$present)
    shown <- disclosed(gone)
    # a count that follows from a small one is hidden too
    if (is.integer(shown) && gone > 0 && (rows - gone) %in% seq_len(floors$cells - 1)) shown <- "hidden"
    list(kind = kinds[[name]], missing = shown, mean = NULL, sd = NULL, quantiles = list(), levels = list(),
        unnamed = 0L)
  }
  own_levels <- lapply(counts, function(x) as.list(sorted(names(x))))
  heard <- meeting$gathered(list(
    rows = rows, dropped = disclosed(dropped), policy = floors, columns = sapply(names(kinds), simplify = FALSE,
        column_of),
    few = as.list(hidden), levels = if (length(own_levels)) own_levels else empty()))
  levels <- sapply(factors, simplify = FALSE, function(name)
    natural(unique(unlist(lapply(heard, function(own) own$levels[[name]])))))
  shown <- setdiff(numeric, unlist(lapply(heard, `[[`, "few")))
  own <- list("(rows)" = item(rows))
  for (name in names(kinds)) own[[paste(name, "(missing)")]] <- item(rows - length(table[[name]]$present))
  for (name in factors) own[[name]] <- item(as.numeric(base::table(factor(table[[name]]$present, levels[[name]]))),
                                            list(length(levels[[name]])))
  sums_at <- function(centres) sapply(names(centres), simplify = FALSE, function(name) {
    x <- table[[name]]$present - centres[[name]]
    item(c(length(x), sum(x), sum(x^2)), list(3L))
  })
  of <- function(x) mean_and_sd(max(x[1], 1), x[2], x[3])
  all <- meeting$total(c(own, sums_at(setNames(as.list(rep(0, length(shown))), shown))))
  columns <- lapply(all[shown], of)
  again <- lapply(Filter(function(own) is.finite(own$mean) && is_far(own), columns), `[[`, "mean")
  if (length(again)) for (name in names(more <- meeting$total(sums_at(again)))) {
    part <- of(more[[name]])
    columns[[name]] <- list(mean = again[[name]] + part$mean, sd = part$sd)
  }
  steady <- c(study$constant, if (length(study$terms$response$columns) > 1) study$terms$response$columns)
  same <- c(Filter(function(name) length(levels[[name]]) == 1, factors), Filter(function(name) columns[[name]]$sd == 0,
      shown))
  for (name in setdiff(same, steady)) fail("column '", name, "' is the same in every row: leave it out")
  # the formula
  single <- function(columns) if (floors$rare == "refuse") for (name in names(columns))
    if (singles_out(columns[[name]], floors$cells)) return(meeting$require(sprintf(
      "%s: refused, in %s, fewer than %d rows differ from the most frequent value, the floor of the site. %s", site,
          name,
      floors$cells, "Leave the term out or merge levels")))
  values <- lapply(table, `[[`, "values")
  for (name in c(study$terms$response$columns, vapply(study$terms$terms, `[[`, "", "column")))
    if (!name %in% names(kinds)) fail("the formula names the column '", name, "', which no site has")
  calls <- Filter(function(term) term$kind %in% c("scale", "center"), study$terms$terms)
  for (term in calls) if (kinds[term$column] == "factor") fail(term$text, " needs numbers, and its column holds texts")
  single(setNames(lapply(calls, function(term) values[[term$column]]), vapply(calls, `[[`, "", "text")))
  at <- if (length(calls)) means_and_sds(meeting, setNames(lapply(calls, function(term) values[[term$column]]),
                                                           seq_along(calls) - 1))
  if (length(calls)) names(at) <- vapply(calls, `[[`, "", "text")
  design <- matrix(1, rows, 1, dimnames = list(NULL, "Intercept"))
  term_of <- "Intercept"
  for (term in study$terms$terms) {
    x <- values[[term$column]]
    if (kinds[term$column] == "factor") {
      part <- outer(x, levels[[term$column]][-1], `==`) + 0
      colnames(part) <- paste0(term$text, "[", levels[[term$column]][-1], "]")
    } else {
      if (term$kind == "scale") x <- (x - at[[term$text]]$mean) / at[[term$text]]$sd
      if (term$kind == "center") x <- x - at[[term$text]]$mean
      part <- matrix(x, rows, 1, dimnames = list(NULL, term$text))
    }
    design <- cbind(design, part)
    term_of <- c(term_of, rep(term$text, ncol(part)))
  }
  single(setNames(lapply(seq_len(ncol(design)), function(k) design[, k]), colnames(design)))
  response <- study$terms$response
  y <- values[[response$columns[1]]]
  if (!is.null(response$level)) {
    if (!response$level %in% levels[[response$columns]]) fail("the response has no level ", response$level)
    y <- (y == response$level) + 0
  }
  trials <- if (length(response$columns) > 1) values[[response$columns[2]]] else rep(1, rows)
  right <- is.numeric(y) && is.numeric(trials) && (study$family == "binomial") == (length(response$columns) > 1) &&
    switch(study$family, normal = TRUE, bernoulli = all(y %in% 0:1),
           binomial = all(trials >= 0 & trials == round(trials) & y >= 0 & y <= trials & y == round(y)),
           all(y >= 0 & y == round(y)))
  if (!right) fail("some responses at site ", site, " do not fit the family ", study$family)
  figures <- means_and_sds(meeting, list(first = y, second = trials, design = unname(design), effects = matrix(0, rows,
      0)))
  mean <- figures$first$mean / figures$second$mean
  sd <- figures$first$sd
  if (study$family %in% c("poisson", "negative_binomial") && !mean > 0)
    fail("the response is 0 in all rows of all sites")
  if (study$family == "normal" && sd <= 1e-12 * abs(mean)) fail("the response is the same number in all rows")
  dim <- ncol(design) + study$family %in% names(EXTRA)
  if (dim / rows > floors$parameters) meeting$require(sprintf(
    "%s: %d parameters are more than %g of the rows, the floor of the site: use fewer columns", site, dim,
        floors$parameters))
  inside <- min(max(mean, 1e-3), 1 - 1e-3)
  start <- switch(study$family, normal = mean, bernoulli = , binomial = log(inside) - log1p(-inside), log(mean))
  unit <- if (study$family == "normal") sd else 1
  spread <- ifelse(figures$design$sd > 0, figures$design$sd, 1)
  loc <- c(if (study$family %in% c("bernoulli", "binomial")) 0 else start, rep(0, ncol(design) - 1))
  scale <- c(2.5 * unit, (2.5 * unit / spread)[-1])
  names(loc) <- names(scale) <- colnames(design)
  used <- character()
  for (name in colnames(design)) for (key in c(name, term_of[match(name, colnames(design))],
                                               if (name != "Intercept") "coefficients")) {
    prior <- study$priors[[match(key, gsub("[ `]", "", names(study$priors)))[1] %or% NA]] %or% NULL
    if (is.null(prior)) next
    used <- c(used, key)
    if (!identical(prior$name, "Normal") || length(prior) != 3)
      fail("the prior of ", key, ": a site with R knows Normal ",
                                                                     "with loc and scale, and the default priors")
    loc[name] <- prior$loc
    scale[name] <- prior$scale
    break
  }
  for (key in setdiff(gsub("[ `]", "", names(study$priors)), used))
    fail("the prior of ", key, " belongs to no coefficient")
  make_model(study$family, design, y, trials, centre = c(0, figures$design$mean[-1]), loc, scale, unit, start,
             length(study$sites))
}
