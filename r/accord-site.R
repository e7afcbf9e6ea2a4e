#!/usr/bin/env Rscript
# A site without Python in a study of accord by files, in base R with the packages jsonlite and openssl.
#
#   Rscript accord-site.R keys identity                              make a key, print the public key
#   Rscript accord-site.R hash study.toml                            the hash that a policy lists
#   Rscript accord-site.R check study.toml site.toml                 can this site take part? Nothing leaves
#   Rscript accord-site.R answer study.toml site.toml board [--yes]  make the next entry
#
# LIMIT. A site with Python computes the next positions itself and refuses other ones. This program does not: it trusts
# the plan of the first site of the study, which must run Python. It checks that the plan names one of four functions
# (value, slope and expansions of the log density), that no position is far from the prior, that all positions of the
# study stay below `points` of the policy, and that all sites have the same entries of all earlier steps.
# It answers regressions (normal, bernoulli, binomial, poisson, negative_binomial) of exact studies with masks.

suppressPackageStartupMessages({library(jsonlite); library(openssl)})
VERSION <- "0.1.0"                     # the version of accord whose studies this program answers
BLANKS <- c("", "NA", "N/A", "NaN", "nan", "null", "NULL")
NO_MASS <- 1e12                        # an agent's potential where it is not finite
FAMILIES <- c("normal", "bernoulli", "binomial", "poisson", "negative_binomial")
EXTRA <- c(normal = "sigma", negative_binomial = "concentration")
FUNCTIONS <- list(value_of = c("points", "coordinates"), slope_of = c("points", "coordinates"),
                  expansion_of = c("argument 0", "points", "coordinates"),
                  mean_expansion = c("argument 0", "argument 1", "coordinates"))

fail <- function(...) stop(structure(class = c("wrong", "error", "condition"), list(message = paste0(...), call = NULL)))
pending <- function(step, sites) stop(structure(class = c("pending", "condition"), list(
  message = sprintf("step %d waits for %s", step, paste(sites, collapse = ", ")), call = NULL)))
`%or%` <- function(x, other) if (is.null(x)) other else x
sorted <- function(x) sort(x, method = "radix")
hex <- function(x) paste(as.character(unclass(as.raw(sha256(x)))), collapse = "")
text64 <- function(x) gsub("\n", "", base64_encode(x), fixed = TRUE)
empty <- function() setNames(list(), character())
json <- function(x) enc2utf8(as.character(toJSON(x, auto_unbox = TRUE, null = "null", digits = I(17))))

# --- TOML ---

# The common part of TOML: values are translated to JSON.
read_toml <- function(path) {
  text <- text_of_file(path)
  tokens <- regmatches(text, gregexpr("\"([^\"\\\\\n]|\\\\.)*\"|'[^'\n]*'|#[^\n]*|[][{},=\n]|[^][{},=#\"'\\s]+", text, perl = TRUE))[[1]]
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
    value[names_here] <- ifelse(grepl("^\"", value[names_here]), value[names_here], paste0("\"", value[names_here], "\""))
    value[value == "="] <- ":"
    number <- grepl("^[+-]?[0-9]", value)
    value[number] <- gsub("^[+]|_", "", value[number])
    text <- gsub(",\\s*([]}])", "\\1", paste(value, collapse = " "))
    value <- tryCatch(fromJSON(paste0("[", text, "]"), simplifyVector = FALSE)[[1]], error = function(e) bad(line))
    root <- put(root, c(section, path_of(line[1])), value)
  }
  root
}

text_of_file <- function(path) {
  if (!file.exists(path) || dir.exists(path)) fail("there is no file ", path)
  text <- rawToChar(readBin(path, "raw", file.size(path)))
  Encoding(text) <- "UTF-8"
  if (!validUTF8(text)) fail(path, " is not UTF-8 text")
  gsub("\r\n", "\n", sub("^\ufeff", "", text), fixed = TRUE)
}

# --- the study and the policy ---

known_keys <- function(where, table, known) for (key in setdiff(names(table), known))
  fail(key, " in ", where, ": a site with R knows only ", paste(known, collapse = ", "))

read_study <- function(path) {
  found <- read_toml(path)
  known_keys("the study", found, c("data", "model", "priors", "run"))
  data <- found$data
  model <- found$model
  run <- found$run
  known_keys("[data]", data, c("sites", "positive", "strings", "blanks", "missing", "constant", "separator", "columns"))
  known_keys("[model]", model, c("formula", "family", "positive"))
  known_keys("[run]", run, c("draws", "chains", "seed", "masks", "coarse", "points", "fallback", "report"))
  study <- list(hash = hex(charToRaw(text_of_file(path))), sites = unlist(data$sites), family = model$family %or% "normal",
                formula = model$formula, priors = found$priors, missing = data$missing %or% "error",
                strings = unlist(data$strings), blanks = c(BLANKS, unlist(data$blanks)),
                constant = unlist(data$constant), separator = data$separator %or% ",", columns = unlist(data$columns))
  wants <- c(if (length(study$sites) < 3 || !(run$masks %or% TRUE)) "masks of at least three sites",
             if (run$coarse %or% TRUE) "exact answers, coarse = false in [run] (it does not add noise yet)",
             if (!(run$points %or% FALSE)) "positions in the plan, points = true in [run]",
             if (run$fallback %or% FALSE) "fallback = false in [run]", if (run$report %or% FALSE) "report = false in [run]",
             if (!is.character(study$family) || !study$family %in% FAMILIES)
               paste("one of the families", paste(FAMILIES, collapse = ", ")),
             if (!study$missing %in% c("error", "drop")) "missing = \"error\" or \"drop\" in [data]",
             if (is.list(data$strings) && !is.null(names(data$strings))) "strings in [data] as a list of columns")
  if (length(wants)) fail("study ", path, ": a site with R needs ", paste(wants, collapse = "; "))
  study$terms <- read_formula(study$formula)
  study$positive <- lapply(c(data$positive, if (!is.null(model$positive))
    setNames(list(model$positive), trimws(sub("~.*", "", study$formula)))), unlist)
  study
}

NAME <- "(`[^`]+`|[[:alpha:]_][[:alnum:]_.]*)"
plain_name <- function(x) gsub("`", "", trimws(x), fixed = TRUE)

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
  mentioned <- plain_name(regmatches(text, gregexpr("`[^`]+`|[[:alpha:]_][[:alnum:]_.]*", text))[[1]])
  list(response = response, terms = terms, mentioned = mentioned,
       factors = unlist(lapply(terms, function(x) if (x$kind == "C") x$column)))
}

read_policy <- function(path) {
  own <- read_toml(path)
  known_keys("the policy", own, c("site", "data", "folder", "studies", "columns", "points", "own_numbers", "exact",
                                  "identity", "peers", "modules", "rows", "cells", "parameters", "rare"))
  for (key in c("site", "data", "folder", "studies", "identity", "peers"))
    if (is.null(own[[key]])) fail("policy ", path, ": ", key, " is missing")
  for (key in c("data", "folder", "identity")) if (!grepl("^/", own[[key]] <- path.expand(own[[key]])))
    own[[key]] <- file.path(dirname(path), own[[key]])
  own$points <- own$points %or% 1000000L
  own$floors <- list(rows = own$rows %or% 10L, cells = own$cells %or% 3L, parameters = own$parameters %or% 0.1,
                     rare = own$rare %or% "refuse")
  if (!own$floors$rare %in% c("refuse", "warn")) fail("policy ", path, ": rare must be \"refuse\" or \"warn\"")
  own
}

refusals <- function(study, policy) {
  keys <- unlist(policy$peers[study$sites])
  beyond <- setdiff(intersect(study$columns %or% study$terms$mentioned, header_of(study, policy)), unlist(policy$columns))
  c(if (!study$hash %in% unlist(policy$studies)) paste("its policy does not allow the study of hash", study$hash),
    if (!policy$site %in% study$sites) paste("the study lists the sites", paste(study$sites, collapse = ", ")),
    if (identical(policy$site, study$sites[1])) "it is the first site of the study, which must run Python",
    if (!is.null(policy$columns) && length(beyond))
      paste("its policy does not allow the columns", paste(sorted(beyond), collapse = ", ")),
    if (!(policy$exact %or% FALSE)) paste("the study has exact answers (coarse = false), which reveal more of its rows,",
                                          "and the policy does not allow that by `exact`"),
    if (length(keys) < length(study$sites) || anyDuplicated(keys)) "its policy needs one public key per site in `peers`",
    if (!identical(unname(policy$peers[[policy$site]]), text64(identity_of(policy)$pubkey$data)))
      "its key in `peers` does not belong to its `identity`")
}

identity_of <- function(policy) tryCatch(
  read_ed25519_key(base64_decode(trimws(readLines(policy$identity, 1L, warn = FALSE)))),
  error = function(e) fail(policy$identity, " holds no private key, see the command keys"),
  warning = function(e) fail(policy$identity, " holds no private key, see the command keys"))

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
  unclear <- function(rows, problem) list(kind = "unclear", values = cells, absent = absent, rows = rows, problem = problem)
  column <- function(kind, values) list(kind = kind, values = values, absent = absent)
  if (all(absent)) return(column("empty", rep(NA_real_, length(cells))))
  if (name %in% names(study$positive)) {
    ones <- level_of(cells) %in% level_of(study$positive[[name]])
    others <- unique(level_of(cells)[has & !ones])
    if (length(others) > 1) return(unclear(which(has & !ones), if (any(ones))
      "a third text besides the two of a yes-no column: name all spellings of 1 in positive"
      else "several texts, none of them in positive"))
    return(column("yes-no", ifelse(has, as.numeric(ones), NA)))
  }
  factor <- function() if (length(unique(cells[has])) > 5000) unclear(which(has), "more than 5,000 different texts")
    else column("factor", ifelse(has, level_of(cells), ""))
  if (name %in% c(study$strings, study$terms$factors)) return(factor())
  if (all(tolower(cells[has]) %in% c("true", "false")))
    return(column("yes-no", ifelse(has, as.numeric(tolower(cells) == "true"), NA)))
  if (any(has & numeric & is.infinite(numbers))) return(unclear(which(is.infinite(numbers)), "no finite float64 number"))
  if (all(numeric[has])) return(column(if (all(numbers[has] %in% 0:1)) "yes-no" else "number", ifelse(has, numbers, NA)))
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
    say(sprintf("%s: column '%s': line %s %s", sheet$where, name, paste(head(at, 5), collapse = ", "), what))
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
      else if (setequal(each, c("number", "yes-no"))) "number" else if (length(unique(each)) == 1) each[1] else "conflict"
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
    if (any(absent[[name]] & keep)) note(name, which(absent[[name]]), "no value: missing = \"drop\" leaves such rows out")
    table[[name]]$present <- table[[name]]$values[!absent[[name]][keep]]
  }
  rows <- sum(keep)
  factors <- names(kinds)[kinds == "factor"]
  counts <- sapply(factors, simplify = FALSE, function(name) table(table[[name]]$present))
  if (rows < floors$rows) problems <- c(problems, sprintf(
    "%s: refused, there are fewer than %d rows, the floor of the site (`rows` in its policy)", sheet$where, floors$rows))
  if (floors$rare == "refuse") for (name in factors) if (any(counts[[name]] < floors$cells))
    problems <- c(problems, sprintf("%s: column '%s': %d of %d levels have fewer than %d rows, the floor of the site: %s",
      sheet$where, name, sum(counts[[name]] < floors$cells), length(counts[[name]]), floors$cells,
      "merge levels, or leave the column out"))
  if (length(shared)) fail(paste(shared, collapse = "; "))
  meeting$require(problems)
  # summaries of the columns
  disclosed <- function(count) if (count > 0 && count < floors$cells) paste("<", floors$cells) else as.integer(count)
  numeric <- names(kinds)[kinds != "factor"]
  hidden <- if (floors$rare != "refuse") character() else Filter(function(name)
    singles_out(table[[name]]$present, floors$cells) || length(table[[name]]$present) %in% seq_len(floors$rows - 1), numeric)
  column_of <- function(name) {
    gone <- rows - length(table[[name]]$present)
    shown <- disclosed(gone)
    # a count that follows from a small one is hidden too
    if (is.integer(shown) && gone > 0 && (rows - gone) %in% seq_len(floors$cells - 1)) shown <- "hidden"
    list(kind = kinds[[name]], missing = shown, mean = NULL, sd = NULL, quantiles = list(), levels = list(), unnamed = 0L)
  }
  own_levels <- lapply(counts, function(x) as.list(sorted(names(x))))
  heard <- meeting$gathered(list(
    rows = rows, dropped = disclosed(dropped), policy = floors, columns = sapply(names(kinds), simplify = FALSE, column_of),
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
  same <- c(Filter(function(name) length(levels[[name]]) == 1, factors), Filter(function(name) columns[[name]]$sd == 0, shown))
  for (name in setdiff(same, steady)) fail("column '", name, "' is the same in every row: leave it out")
  # the formula
  single <- function(columns) if (floors$rare == "refuse") for (name in names(columns))
    if (singles_out(columns[[name]], floors$cells)) return(meeting$require(sprintf(
      "%s: refused, in %s, fewer than %d rows differ from the most frequent value, the floor of the site. %s", site, name,
      floors$cells, "Leave the term out or merge levels")))
  values <- lapply(table, `[[`, "values")
  for (name in c(study$terms$response$columns, vapply(study$terms$terms, `[[`, "", "column")))
    if (!name %in% names(kinds)) fail("the formula names the column '", name, "', which no site has")
  calls <- Filter(function(term) term$kind %in% c("scale", "center"), study$terms$terms)
  for (term in calls) if (kinds[term$column] == "factor") fail(term$text, " needs numbers, and its column holds texts")
  single(setNames(lapply(calls, function(term) values[[term$column]]), vapply(calls, `[[`, "", "text")))
  at <- if (length(calls)) means_and_sds(meeting, setNames(lapply(calls, function(term) values[[term$column]]),
                                                           seq_along(calls) - 1))
  names(at) <- vapply(calls, `[[`, "", "text")
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
  figures <- means_and_sds(meeting, list(first = y, second = trials, design = unname(design), effects = matrix(0, rows, 0)))
  mean <- figures$first$mean / figures$second$mean
  sd <- figures$first$sd
  if (study$family %in% c("poisson", "negative_binomial") && !mean > 0) fail("the response is 0 in all rows of all sites")
  if (study$family == "normal" && sd <= 1e-12 * abs(mean)) fail("the response is the same number in all rows")
  dim <- ncol(design) + study$family %in% names(EXTRA)
  if (dim / rows > floors$parameters) meeting$require(sprintf(
    "%s: %d parameters are more than %g of the rows, the floor of the site: use fewer columns", site, dim, floors$parameters))
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
    if (!identical(prior$name, "Normal") || length(prior) != 3) fail("the prior of ", key, ": a site with R knows Normal ",
                                                                     "with loc and scale, and the default priors")
    loc[name] <- prior$loc
    scale[name] <- prior$scale
    break
  }
  for (key in setdiff(gsub("[ `]", "", names(study$priors)), used)) fail("the prior of ", key, " belongs to no coefficient")
  make_model(study$family, design, y, trials, centre = c(0, figures$design$mean[-1]), loc, scale, unit, start,
             length(study$sites))
}

# --- potential = -(log likelihood) - (log prior) / sites, and its derivatives ---

make_model <- function(family, X, y, trials, centre, loc, scale, unit, start, sites) {
  model <- list(family = family, X = X, y = y, trials = trials, centre = centre, loc = loc, scale = scale, unit = unit,
                sites = sites, names = c(colnames(X), if (family %in% names(EXTRA)) EXTRA[[family]]))
  model$constant <- switch(family, binomial = lchoose(trials, y), bernoulli = 0, normal = -log(2 * pi) / 2, -lgamma(y + 1))
  dim <- length(model$names)
  # positions far from the prior are not evaluated: there, sums reveal most
  init <- c(start, rep(0, ncol(X) - 1), if (dim > ncol(X)) if (family == "normal") log(unit) else 0)
  model$lowest <- prior_at(model, init)$value - prior_at(model, init)$volume - max(10, sqrt(dim) + 5)^2 / 2
  model
}

# The log prior with the log Jacobian of the last parameter, which is positive and moves as its logarithm.
prior_at <- function(model, x) {
  k <- length(model$loc)
  u <- x[1:k]
  u[1] <- u[1] + sum(model$centre * x[1:k])
  to_u <- diag(k)
  to_u[1, ] <- to_u[1, ] + model$centre
  r <- (u - model$loc) / model$scale
  own <- list(value = sum(-r^2 / 2 - log(model$scale) - log(2 * pi) / 2), gradient = drop(-crossprod(to_u, r / model$scale)),
              hessian = -crossprod(to_u / model$scale), volume = 0)
  if (length(x) == k) return(own)
  s <- exp(x[k + 1])
  extra <- if (model$family == "normal") c(-s / model$unit - log(model$unit), -s / model$unit, -s / model$unit)
    else c(-log1p(s^2) + log(2 / pi), -2 * s^2 / (1 + s^2), -4 * s^2 / (1 + s^2)^2)
  list(value = own$value + extra[1] + x[k + 1], gradient = c(own$gradient, extra[2] + 1), volume = x[k + 1],
       hessian = rbind(cbind(own$hessian, 0), c(rep(0, k), extra[3])))
}

# Log density of each row and its derivatives by the linear predictor e and by the log s of the last parameter. `eee` is
# the third derivative, for expansions of third order.
rows_at <- function(model, e, s) {
  y <- model$y
  n <- model$trials
  p <- 1 / (1 + exp(-e))
  above <- pmax(e, 0) + log1p(exp(-abs(e)))
  switch(model$family,
    normal = {
      w <- exp(-2 * s)
      r <- y - e
      list(value = model$constant - s - r^2 * w / 2, e = r * w, ee = rep(-w, length(y)), s = r^2 * w - 1, es = -2 * r * w,
           ss = -2 * r^2 * w, eee = rep(0, length(y)))
    },
    bernoulli = , binomial = list(value = model$constant + y * e - n * above, e = y - n * p, ee = -n * p * (1 - p),
                                  eee = -n * p * (1 - p) * (1 - 2 * p)),
    poisson = list(value = model$constant + y * e - exp(e), e = y - exp(e), ee = -exp(e), eee = -exp(e)),
    negative_binomial = {
      k <- exp(s)
      a <- e - s
      p <- 1 / (1 + exp(-a))
      minus <- pmax(a, 0) + log1p(exp(-abs(a)))
      w <- (y + k) * p * (1 - p)
      # sums of the logarithms of k, k + 1, ..., k + y - 1, and their derivatives by k
      steps <- k + seq_len(max(y)) - 1
      sums <- function(x) c(0, cumsum(x))[y + 1]
      one <- k * sums(1 / steps)
      two <- one - k^2 * sums(1 / steps^2)
      d <- y * (1 - p) - k * p
      list(value = model$constant + sums(log(steps)) + y * (a - minus) - k * minus, e = d, ee = -w, s = one - d - k * minus,
           es = w - k * p, ss = two - (w - k * p) - k * minus + k * p, eee = -w * (1 - 2 * p))
    })
}

# Value, gradient and Hessian (up to `order`) of the potential at x.
potential_at <- function(model, x, order) {
  k <- ncol(model$X)
  prior <- prior_at(model, x)
  near <- prior$value - prior$volume >= model$lowest
  found <- list(value = Inf, gradient = -prior$gradient / model$sites, hessian = -prior$hessian / model$sites)
  if (!near) return(found)
  own <- rows_at(model, drop(model$X %*% x[1:k]), if (length(x) > k) x[k + 1] else 0)
  found$value <- -sum(own$value) - prior$value / model$sites
  if (order > 0) found$gradient <- found$gradient - c(crossprod(model$X, own$e), if (length(x) > k) sum(own$s))
  if (order > 1) {
    h <- crossprod(model$X, model$X * own$ee)
    if (length(x) > k) h <- rbind(cbind(h, crossprod(model$X, own$es)), c(crossprod(model$X, own$es), sum(own$ss)))
    found$hessian <- found$hessian - h
  }
  found
}

# What the plan asks for, as a matrix with one row per point (a vector for values and means).
answer_of <- function(model, what, parts) {
  points <- parts$points
  place <- parts$coordinates %or% list(origin = rep(0, length(model$names)), factor = diag(length(model$names)))
  if (!is.matrix(place$factor)) place$factor <- diag(place$factor, length(place$factor))
  most <- if (what %in% c("value_of", "slope_of")) NO_MASS else if (what == "expansion_of") parts[["argument 0"]] else Inf
  order <- c(value_of = 0, slope_of = 1)[what]
  if (is.na(order)) order <- 2
  if (what == "mean_expansion") points <- rep(parts[["argument 0"]], each = nrow(parts[["argument 1"]])) + parts[["argument 1"]]
  if (!is.matrix(points) || ncol(points) != length(model$names)) fail("the plan has positions of another dimension")
  found <- apply(points, 1, function(z) {
    at <- potential_at(model, drop(place$origin + place$factor %*% z), order)
    h <- if (order > 1) crossprod(place$factor, at$hessian %*% place$factor)
    own <- c(at$value, if (order > 0) crossprod(place$factor, at$gradient), if (order > 1) h[lower.tri(h, TRUE)])
    if (is.infinite(most)) own else if (all(is.finite(own))) pmin(pmax(own, -most), most) else c(most, 0 * own[-1])
  })
  if (order == 0) found else if (what == "mean_expansion") rowMeans(found) else t(found)
}

# --- masks: 128-bit words with 64 fractional bits, as rows of 8 limbs of 16 bits, the lowest first ---

carry <- function(limbs) {
  for (k in 1:8) {
    over <- floor(limbs[, k] / 65536)
    limbs[, k] <- limbs[, k] - over * 65536
    if (k < 8) limbs[, k + 1] <- limbs[, k + 1] + over
  }
  limbs
}
split16 <- function(x) vapply(0:3, function(k) { x <- floor(x / 65536^k); x - floor(x / 65536) * 65536 }, numeric(length(x)))
words_of <- function(x, is_whole) {    # as accord.posterior.masks.encoded does
  whole <- floor(abs(x))
  cut <- function(x) matrix(split16(x), ncol = 4)
  carry(cbind(cut(ifelse(rep(is_whole, length.out = length(x)), 0, round((abs(x) - whole) * 2^64))), cut(whole)) * ifelse(x < 0, -1, 1))
}
limbs_of <- function(bytes) {
  all <- matrix(readBin(bytes, "integer", length(bytes) / 2, 2L, FALSE, "little"), ncol = 4, byrow = TRUE)
  cbind(all[seq_len(nrow(all) / 2), , drop = FALSE], all[nrow(all) / 2 + seq_len(nrow(all) / 2), , drop = FALSE])
}
bytes_of <- function(limbs) writeBin(as.integer(c(t(limbs[, 1:4]), t(limbs[, 5:8]))), raw(), 2L, "little")
numbers_in <- function(limbs) {
  negative <- limbs[, 8] >= 32768
  limbs <- carry(limbs * ifelse(negative, -1, 1))
  drop(limbs %*% 2^(16 * 0:7 - 64)) * ifelse(negative, -1, 1)
}
le8 <- function(x) writeBin(as.integer(c(x, 0)), raw(), 4L, "little")
hmac <- function(key, x) as.raw(sha256(x, key = key))

pair_keys <- function(private, here, publics, study) {
  about <- c(as.raw(sha256(c(charToRaw("accord public keys 1"), unlist(publics)))), as.raw(sha256(charToRaw(study))))
  sapply(as.character(setdiff(seq_along(publics), here) - 1), simplify = FALSE, function(other) {
    secret <- x25519_diffie_hellman(private, read_x25519_pubkey(publics[[as.integer(other) + 1]]))
    if (all(secret == 0)) fail("a site's public key of masks is invalid")
    pair <- sort(c(here - 1, as.integer(other)))
    text64(hmac(hmac(raw(32), secret), c(charToRaw("accord masks 2"), le8(pair[1]), le8(pair[2]), about, as.raw(1))))
  })
}

masked <- function(words, keys, here, step, context) {
  for (other in names(keys)) {
    key <- hmac(base64_decode(keys[[other]]), charToRaw(paste0("accord step 1", context)))
    stream <- aes_ctr_encrypt(raw(16 * nrow(words)), key, c(rev(le8(step + 1)), raw(8)))
    words <- words + limbs_of(as.raw(stream)) * (if (here - 1 < as.integer(other)) 1 else -1)
  }
  carry(words)
}

# --- entries ---

write_private <- function(path, bytes) {
  dir.create(dirname(path), showWarnings = FALSE, recursive = TRUE, mode = "0700")
  new <- paste0(path, ".new")
  writeBin(bytes, new)
  if (nzchar(Sys.which("sync"))) system2("sync", shQuote(new))
  if (!file.rename(new, path)) fail("cannot write ", path)
}
entry_path <- function(folder, step, site) file.path(folder, sprintf("step-%03d", step), paste0(site, ".json"))
entry_at <- function(folder, step, site) {
  path <- entry_path(folder, step, site)
  if (!file.exists(path)) return(NULL)
  if (!Sys.readlink(path) %in% c("", NA) || dir.exists(path) || file.size(path) > 2e8) fail(path, " is no file with an entry")
  bytes <- readBin(path, "raw", file.size(path))
  if (length(bytes) && tail(bytes, 1) == as.raw(10) && sum(bytes == as.raw(10)) == 2) bytes
}

read_entry <- function(bytes, study, policy, step, site) {
  where <- paste("the entry of", site, "in step", step)
  end <- which(bytes == as.raw(10))
  line <- bytes[seq_len(end[1] - 1)]
  text <- rawToChar(line)
  Encoding(text) <- "UTF-8"
  proof <- tryCatch(base64_decode(fromJSON(rawToChar(bytes[(end[1] + 1):(end[2] - 1)]))$signature), error = function(e) raw())
  signed <- length(proof) == 64 && tryCatch(ed25519_verify(c(charToRaw("accord entry 1\n"), line), proof,
    read_ed25519_pubkey(base64_decode(policy$peers[[site]]))), error = function(e) FALSE)
  if (!isTRUE(signed)) fail(where, " is not signed by ", site, ": it was changed, or made by someone else")
  entry <- tryCatch(fromJSON(text, simplifyVector = FALSE), error = function(e) fail(where, " is no entry of a study"))
  if (!identical(list(entry$study, as.integer(entry$step), entry$site), list(study$hash, as.integer(step), site)))
    fail(where, " is one of another study, step or site")
  # the text of the plan, whose digest the entry has
  from <- tail(gregexpr("\"written\": ", text, fixed = TRUE)[[1]], 1)
  plan <- if (from > 0) substr(text, from + 11, nchar(text) - 1)
  same <- tryCatch(identical(fromJSON(plan, simplifyVector = FALSE), entry$written), error = function(e) FALSE)
  if (length(entry$written) && !(same && hex(charToRaw(plan)) == entry$plan)) fail(where, " has a plan with another digest")
  entry
}

revived <- function(x) {
  if (!is.list(x)) return(x)
  if (setequal(names(x), "float")) return(c(inf = Inf, "-inf" = -Inf, nan = NaN)[[x$float]])
  if (is.null(x$shape) || is.null(x$type)) return(lapply(x, revived))
  if (x$type != "<f8") fail("the plan has an array of the type ", x$type)
  flat <- if (is.null(x$base64)) vapply(x$values, function(one) as.numeric(revived(one)), 0)
    else { bytes <- base64_decode(x$base64); readBin(bytes, "double", length(bytes) / 8, endian = "little") }
  if (length(flat) != prod(unlist(x$shape))) fail("the plan has an array of another size than its shape")
  if (length(x$shape) == 2) matrix(flat, x$shape[[1]], byrow = TRUE) else flat
}

audit <- function(policy, ...) cat(json(list(time = format(Sys.time(), "%Y-%m-%dT%H:%M:%OS3+00:00", tz = "UTC"), ...)), "\n",
                                   sep = "", file = file.path(policy$folder, "audit.jsonl"), append = TRUE)

start_exchange <- function(study, policy, board) {
  own <- file.path(policy$folder, substr(study$hash, 1, 16))
  store <- file.path(own, "entries")
  S <- new.env()
  S$step <- 0L
  S$before <- hex(charToRaw(study$hash))
  here <- match(policy$site, study$sites)
  made <- length(list.files(store, paste0("^", policy$site, "[.]json$"), recursive = TRUE))
  # entries of other sites, as far as an honest site can be
  take <- function() for (site in setdiff(study$sites, policy$site)) {
    stored <- entry_at(store, S$step, site)
    new <- entry_at(board, S$step, site)
    if (is.null(new) || identical(new, stored)) next
    if (!is.null(stored)) fail("the entry of ", site, " in step ", S$step, " differs from the one that this site received before")
    read_entry(new, study, policy, S$step, site)
    write_private(entry_path(store, S$step, site), new)
  }
  make <- function(words, plan, content) {
    line <- charToRaw(json(list(study = study$hash, step = S$step, site = policy$site, before = S$before, what = words,
                                plan = plan, written = empty(), content = content)))
    proof <- ed25519_sign(c(charToRaw("accord entry 1\n"), line), identity_of(policy))
    bytes <- c(line, as.raw(10), charToRaw(json(list(signature = text64(proof)))), as.raw(10))
    data <- file.path(own, "data.txt")
    if (S$step > 0 && !file.exists(data)) write_private(data, charToRaw(hex(readBin(policy$data, "raw", file.size(policy$data)))))
    audit(policy, study = study$hash, step = S$step, what = words, bytes = length(bytes), hash = hex(bytes),
          sent = if ("masked" %in% names(content)) "numbers under masks" else content)
    write_private(entry_path(store, S$step, policy$site), bytes)
    bytes
  }
  entries <- function() {
    take()
    found <- lapply(setNames(study$sites, study$sites), function(site) if (!is.null(bytes <- entry_at(store, S$step, site)))
      read_entry(bytes, study, policy, S$step, site))
    for (site in study$sites) if (!is.null(found[[site]]) && found[[site]]$before != S$before)
      fail(site, " has other entries of the steps before ", S$step, " than this site")
    refused <- Filter(function(one) is.list(one$content) && "refused" %in% names(one$content), found)
    if (length(refused)) {
      if (is.null(found[[policy$site]])) make("nothing, as another site refuses", "", list(refused = list()))
      fail("the study ends here: ", paste(unlist(lapply(refused, function(one) one$content$refused)), collapse = "; "))
    }
    found
  }
  # One step: `own(plan, context)` makes this site's content. Without `what`, the first site plans.
  S$gather <- function(what, own, words) {
    found <- entries()
    leader <- found[[study$sites[1]]]
    if (is.null(what) && is.null(leader)) pending(S$step, study$sites[1])
    plan <- if (is.null(what)) leader$plan else hex(charToRaw(sprintf("{\"parts\": {}, \"what\": \"%s\"}", what)))
    if (is.null(what) && !length(leader$written)) fail("the entry of ", study$sites[1], " in step ", S$step, " has no plan")
    if (is.null(found[[policy$site]])) {
      content <- own(leader$written, paste0(S$before, plan))
      make(if (is.function(words)) words(leader$written) else words, plan, content)
      found <- entries()
    }
    for (site in names(found)) if (!is.null(found[[site]]) && found[[site]]$plan != plan)
      fail(site, " evaluated another plan in step ", S$step, " than this site")
    if (length(missing <- study$sites[vapply(found, is.null, TRUE)])) pending(S$step, missing)
    hashes <- vapply(study$sites, function(site) hex(entry_at(store, S$step, site)), "")
    S$before <- hex(charToRaw(paste(c(S$before, hashes), collapse = "")))
    S$step <- S$step + 1L
    found
  }
  S$refuse <- function(problems) {
    if (is.null(entries()[[policy$site]])) make("the reasons why this site refuses", "", list(refused = as.list(problems)))
    fail(paste(problems, collapse = "; "))
  }
  S$here <- here
  S$own <- own
  S$store <- store
  S
}

masked_content <- function(S, study, x, is_whole, like, about, context) {
  state <- fromJSON(file.path(S$own, "masks.json"), simplifyVector = FALSE)
  fits <- all(is.finite(x)) && all(abs(x) < 2^62 / length(study$sites))
  words <- if (fits) words_of(x, is_whole) else limbs_of(rand_bytes(16 * length(x)))
  words <- masked(rbind(words, c(0, 0, 0, 0, !fits, 0, 0, 0)), state$keys, S$here, S$step, context)
  list(about = about, like = like, masked = list(shape = list(2L, nrow(words)), type = "<u8", base64 = text64(bytes_of(words))))
}

run_study <- function(study, policy, board, say) {
  S <- start_exchange(study, policy, board)
  state <- file.path(S$own, "masks.json")
  found <- S$gather("keys", function(plan, context) {
    key <- x25519_keygen()
    if (!file.exists(state)) write_private(state, charToRaw(json(list(
      private = text64(as.raw(key$data)), public = text64(as.raw(key$pubkey$data))))))
    list(identity = policy$peers[[policy$site]], accord = VERSION, masks = fromJSON(state)$public)
  }, "public keys of this site, and the version of accord there")
  versions <- unique(vapply(found, function(one) one$content$accord, ""))
  if (!identical(versions, VERSION)) fail("all sites need accord ", VERSION, ", found ", paste(versions, collapse = ", "))
  keys <- fromJSON(state)
  if (is.null(keys$keys)) {
    publics <- lapply(found, function(one) base64_decode(one$content$masks))
    if (anyDuplicated(publics) || keys$public != found[[policy$site]]$content$masks) fail("the keys of this site's masks are lost")
    private <- read_x25519_key(base64_decode(keys$private))
    write_private(state, charToRaw(json(list(public = keys$public, agent = S$here - 1L,
                                             keys = pair_keys(private, S$here, publics, study$hash)))))
  }
  meeting <- list(
    gathered = function(own) lapply(S$gather("gathered", function(plan, context) own,
      "names, kinds and levels of columns, numbers of rows and missing cells, or floors"), `[[`, "content"),
    require = function(problems) if (length(problems)) S$refuse(problems),
    total = function(items) {
      items <- items[sorted(names(items))]
      x <- unlist(lapply(items, `[[`, "x"), use.names = FALSE)
      fits <- abs(x) * 2^50 < 2^52
      n <- length(x)
      found <- S$gather("summaries", function(plan, context) {
        count_points(S, policy, n)
        masked_content(S, study, c(x, ifelse(fits, x * 2^50, 0), !fits), rep(c(FALSE, FALSE, TRUE), each = n),
                       list(list("<f8", n), list("<f8", n), list("<i8", n)), lapply(items, `[[`, "shape"), context)
      }, paste0("sums over rows, for the model: ", paste(names(items), collapse = ", ")))
      words <- carry(Reduce(`+`, lapply(found, function(one) limbs_of(base64_decode(one$content$masked$base64)))))
      sums <- numbers_in(words)
      if (nrow(words) != 3 * n + 1 || any(words[3 * n + 1, c(1:4, 6:8)] != 0)) fail("the masks did not cancel")
      if (sums[3 * n + 1] != 0) fail("some sites have numbers that a masked sum cannot carry")
      total <- ifelse(sums[2 * n + 1:n] > 0, sums[1:n], sums[n + 1:n] / 2^50)
      split(total, factor(rep(names(items), lengths(lapply(items, `[[`, "x"))), names(items)))
    })
  model <- withCallingHandlers(build_model(study, policy, meeting, say), wrong = function(e)
    # other sites must not wait for this one, whose reason may be about its rows
    if (is.null(entry_at(S$store, S$step, policy$site))) tryCatch(S$refuse(paste0(
      policy$site, ": its file does not fit the model; the reason is in its audit file")), error = function(e) NULL))
  repeat {
    result <- NULL
    S$gather(NULL, function(plan, context) {
      parts <- lapply(plan$parts, function(part) revived(if (is.list(part) && !is.null(part$drawn)) part$points else part))
      if (identical(plan$what, "result")) return(NULL)
      if (!isTRUE(all(names(parts) %in% FUNCTIONS[[plan$what]]))) fail(
        "the plan of ", study$sites[1], " evaluates ", plan$what, ": a site with R evaluates only ",
        paste(names(FUNCTIONS), collapse = ", "))
      if ("points" %in% names(plan$parts) && is.null(parts$points)) fail("the plan has no positions: points = true in [run]")
      count_points(S, policy, nrow(parts$points) %or% 1)
      x <- answer_of(model, plan$what, parts)
      masked_content(S, study, as.numeric(t(x)), FALSE, list(c(list("<f8"), as.list(dim(x) %or% length(x)))), NULL, context)
    }, function(plan) if (identical(plan$what, "result")) "the means and sds of the draws, which all sites have"
      else sprintf("%s of an agent's potential at %d positions", sub("_of$", "", plan$what), length_of(plan)))
    done <- read_entry(entry_at(S$store, S$step - 1L, study$sites[1]), study, policy, S$step - 1L, study$sites[1])$written
    if (identical(done$what, "result"))
      return(data.frame(mean = revived(done$parts$means), sd = revived(done$parts$sds), row.names = model$names))
  }
}

length_of <- function(plan) as.integer((plan$parts$points$shape %or% plan$parts$points$points$shape)[[1]] %or% 1)

count_points <- function(S, policy, points) {
  path <- file.path(S$own, "points.txt")
  before <- if (file.exists(path)) as.numeric(readLines(path, warn = FALSE)) else 0
  if (before + points > policy$points) fail(policy$site, ": refused, its policy allows sums at ", policy$points,
    " positions of a study, ", before, " were evaluated before, and now ", points, " more")
  write_private(path, charToRaw(format(before + points, scientific = FALSE)))
}

# --- commands ---

with_lock <- function(folder, work) {
  dir.create(folder, showWarnings = FALSE, recursive = TRUE, mode = "0700")
  lock <- file.path(folder, "lock-of-r")
  if (!dir.create(lock, showWarnings = FALSE)) {
    owner <- tryCatch(as.integer(readLines(file.path(lock, "process"), warn = FALSE)), error = function(e) NA,
                      warning = function(w) NA)
    if (is.na(owner) || tools::pskill(owner, 0L)) fail("another process answers in ", folder, ": if none does, delete ", lock)
  }
  writeLines(as.character(Sys.getpid()), file.path(lock, "process"))
  on.exit(unlink(lock, recursive = TRUE))
  work()
}

release <- function(study, policy, board, yes) {
  store <- file.path(policy$folder, substr(study$hash, 1, 16), "entries")
  for (folder in sorted(list.files(store, "^step-[0-9]+$"))) {
    step <- as.integer(sub("step-", "", folder))
    bytes <- entry_at(store, step, policy$site)
    if (is.null(bytes) || !is.null(entry_at(board, step, policy$site))) next
    entry <- fromJSON(rawToChar(bytes[seq_len(which(bytes == as.raw(10))[1] - 1)]), simplifyVector = FALSE)
    cat(sprintf("step %d, %d bytes: %s\n", step, length(bytes), entry$what))
    if (!"masked" %in% names(entry$content)) cat("  ", substr(json(entry$content), 1, 2000), "\n", sep = "")
    if (!yes) {
      cat("release? [y/N]: ")
      if (!tolower(trimws(readLines(file("stdin"), 1L))) %in% c("y", "yes")) fail(
        "nothing leaves ", policy$site, ". The same command asks again.")
    }
    dir.create(dirname(entry_path(board, step, "x")), showWarnings = FALSE, recursive = TRUE)
    new <- paste0(entry_path(board, step, policy$site), ".new")
    writeBin(bytes, new)
    file.rename(new, entry_path(board, step, policy$site))
  }
}

answer <- function(study, policy, board, yes) with_lock(policy$folder, function() {
  say <- function(text) cat("this site only: ", text, "\n", sep = "")
  data <- file.path(policy$folder, substr(study$hash, 1, 16), "data.txt")
  result <- tryCatch({
    if (length(wrong <- refusals(study, policy))) fail(policy$site, ": refused, ", wrong[1])
    if (file.exists(data) && readLines(data, warn = FALSE) != hex(readBin(policy$data, "raw", file.size(policy$data))))
      fail(policy$site, ": its data has changed since this study began")
    run_study(study, policy, board, say)
  }, pending = identity, error = function(e) {
    # messages of R may quote a cell
    text <- if (inherits(e, "wrong")) conditionMessage(e) else "an error of R, see the audit file"
    audit(policy, study = study$hash, refused = conditionMessage(e))
    release(study, policy, board, yes)
    fail(text)
  })
  release(study, policy, board, yes)
  if (inherits(result, "pending")) return(cat(conditionMessage(result), "\n", sep = ""))
  cat("the study is finished\n")
  print(result)
})

check <- function(study, policy) {
  wrong <- refusals(study, policy)
  kinds <- list()
  meeting <- list(
    gathered = function(own) { if (!is.null(own$kinds)) kinds <<- own$kinds; rep(list(own), length(study$sites)) },
    require = function(problems) if (length(problems)) fail(paste(problems, collapse = "; ")),
    total = function(items) lapply(items, function(own) length(study$sites) * own$x))
  perhaps <- tryCatch({ build_model(study, policy, meeting, identity); NULL }, wrong = conditionMessage)
  cat("study ", study$hash, "\n", policy$site, ": ", paste0(names(kinds), " (", unlist(kinds), ")", collapse = ", "), "\n", sep = "")
  if (length(perhaps)) cat("perhaps: with rows like these at all sites, ", perhaps, "\n", sep = "")
  if (length(wrong)) fail(policy$site, ": refused, ", paste(wrong, collapse = "; "))
  cat(policy$site, " can take part\n", sep = "")
}

main <- function(words) {
  yes <- "--yes" %in% words
  words <- setdiff(words, "--yes")
  Sys.umask("077")
  command <- words[1] %or% ""
  if (identical(command, "keys") && length(words) == 2) {
    if (file.exists(words[2])) fail(words[2], " exists: a key is never replaced")
    secret <- rand_bytes(32)
    writeLines(text64(secret), words[2])
    cat(text64(read_ed25519_key(secret)$pubkey$data), "\n", sep = "")
  } else if (identical(command, "hash") && length(words) == 2) cat(hex(charToRaw(text_of_file(words[2]))), "\n", sep = "")
  else if (identical(command, "check") && length(words) == 3) check(read_study(words[2]), read_policy(words[3]))
  else if (identical(command, "answer") && length(words) == 4) {
    study <- read_study(words[2])
    answer(study, read_policy(words[3]), words[4], yes)
  } else fail("use: accord-site.R keys FILE | hash STUDY | check STUDY SITE | answer STUDY SITE BOARD [--yes]")
}

if (sys.nframe() == 0) tryCatch(main(commandArgs(TRUE)), error = function(e) {
  message(conditionMessage(e))
  quit(status = 1)
})
