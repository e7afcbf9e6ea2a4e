# The model of a site in R: its study and formula, and the summaries of rows that all sites agree on.
# accord-site.R reads this file. It needs base R and the package jsonlite.

FAMILIES <- c("normal", "bernoulli", "binomial", "poisson", "negative_binomial")
EXTRA <- c(normal = "sigma", negative_binomial = "concentration")
NAMES <- "`[^`]+`|[[:alpha:]_][[:alnum:]_.]*"
NAME <- paste0("(", NAMES, ")")

BLANKS <- c("", "NA", "N/A", "NaN", "nan", "null", "NULL")
plain_name <- function(x) gsub("`", "", trimws(x), fixed = TRUE)
# A problem of the rows of all sites. `check` cannot know whether other sites have it too.
fail_at_all <- function(...) stop(structure(class = c("of all", "wrong", "error", "condition"),
                                            list(message = paste0(...), call = NULL)))

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
    terms <- c(terms, list(c(one, text = if (one$kind == "plain") one$column else
      paste0(one$kind, "(", one$column, ")"))))
  }
  if (anyDuplicated(terms)) fail("the formula has a term twice: ", text)
  if (any(response$columns %in% vapply(terms, `[[`, "", "column"))) fail("the response is also among the terms: ", text)
  mentioned <- plain_name(regmatches(text, gregexpr(NAMES, text))[[1]])
  list(response = response, terms = terms, mentioned = mentioned,
       factors = unlist(lapply(terms, function(x) if (x$kind == "C") x$column)))
}

# --- the study and the policy ---

known_keys <- function(where, table, known) for (key in setdiff(names(table), known))
  fail(key, " in ", where, ": a site with R knows only ", paste(known, collapse = ", "))

read_study <- function(path) {
  found <- read_toml(path)
  known_keys("the study", found, c("data", "model", "priors", "run", "rehearsal"))
  data <- found$data
  model <- found$model
  run <- found$run
  # names of files. Sites with Python refuse names that look alike
  if (!all(grepl("(*UCP)^\\w([\\w.-]| (?! )){0,63}(?<![ .])$", unlist(data$sites), perl = TRUE)))
    fail("a site's name has at most 64 letters, digits, single spaces and . _ - only, and ends in none of space and ",
         "dot")
  known_keys("[data]", data, c("sites", "positive", "strings", "blanks", "missing", "constant", "separator", "columns"))
  known_keys("[model]", model, c("formula", "family", "positive"))
  known_keys("[run]", run, c("draws", "chains", "seed", "masks", "coarse", "points", "fallback", "report"))
  study <- list(hash = hex(charToRaw(text_of_file(path))), sites = unlist(data$sites),
                coarse = run$coarse %or% TRUE,
                family = model$family %or% "normal", formula = model$formula, priors = found$priors,
                missing = data$missing %or% "error", strings = unlist(data$strings),
                blanks = c(BLANKS, unlist(data$blanks)),
                constant = unlist(data$constant), separator = data$separator %or% ",", columns = unlist(data$columns))
  for_whole <- function(key, least) {
    x <- run[[key]] %or% 1
    if (!(is.numeric(x) && x == round(x) && x >= least))
      paste0(key, " in [run] as a whole number", if (is.finite(least)) " above 0")
  }
  for_prior <- function(key) {
    prior <- study$priors[[key]]
    if (!is.list(prior) || !identical(prior$name, "Normal")) return(paste0(
      "the default prior of ", key, " or Normal (a site with R knows Normal only)"))
    if (!all(names(prior) %in% c("name", "loc", "scale")) || !is.numeric(prior$loc) || !is.numeric(prior$scale) ||
        !isTRUE(prior$scale > 0)) paste0("the prior of ", key, " with the numbers loc and scale, and scale above 0")
  }
  for (key in c("masks", "coarse", "points", "fallback", "report")) if (!is.logical(run[[key]] %or% TRUE))
    fail("study ", path, ": ", key, " in [run] must be true or false")
  separators <- if (is.list(study$separator)) study$separator else list(study$separator)
  wants <- c(if (length(study$sites) < 3 || !(run$masks %or% TRUE)) "masks of at least three sites",
             if (!(run$points %or% FALSE)) "positions in the plan, points = true in [run]",
             if (run$fallback %or% FALSE) "fallback = false in [run]",
             if (run$report %or% FALSE) "report = false in [run]",
             for_whole("draws", 1), for_whole("chains", 1), for_whole("seed", -Inf),
             unlist(lapply(names(found$priors), for_prior)),
             if (!all(vapply(separators, function(one) is.character(one) && grepl("^[ !#-~\t]$", one), NA)))
               "separator in [data] as one character of ASCII",
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
  for (key in c("rows", "cells", "parameters")) if (!is.numeric(own$floors[[key]]))
    fail("policy ", path, ": ", key, " must be a number")
  if (!is.numeric(own$points) || own$points < 1) fail("policy ", path, ": points must be a number above 0")
  if (!own$floors$rare %in% c("refuse", "warn")) fail("policy ", path, ": rare must be \"refuse\" or \"warn\"")
  own
}

refusals <- function(study, policy) {
  keys <- unlist(policy$peers[study$sites])
  beyond <- setdiff(intersect(study$columns %or% study$terms$mentioned, names(policy$sheet$columns)),
      unlist(policy$columns))
  c(if (!study$hash %in% unlist(policy$studies)) paste("its policy does not allow the study of hash", study$hash),
    if (!policy$site %in% study$sites) paste("the study lists the sites", paste(study$sites, collapse = ", ")),
    if (identical(policy$site, study$sites[1])) "it is the first site of the study, which must run Python",
    if (!is.null(policy$columns) && length(beyond))
      paste("its policy does not allow the columns", paste(sorted(beyond), collapse = ", ")),
    if (!study$coarse && !(policy$exact %or% FALSE))
      paste("the study has exact answers (coarse = false), which reveal more of its rows,",
                                          "and the policy does not allow that by `exact`"),
    if (length(keys) < length(study$sites) || anyDuplicated(keys))
      "its policy needs one public key per site in `peers`",
    if (!identical(unname(policy$peers[[policy$site]]), text64(identity_of(policy)$pubkey$data)))
      "its key in `peers` does not belong to its `identity`")
}

# --- the rows ---

singles_out <- function(x, cells) {
  x <- sort(x) / max(abs(x), .Machine$double.xmin)
  if (!length(x)) return(FALSE)
  most <- max(findInterval(x + 1e-3 * (max(x) - min(x)), x) - seq_along(x) + 1)
  length(x) > most && length(x) - most < cells
}

# Whether one row of a design has a leverage above 0.9, or the block of two rows in the hat matrix an eigenvalue
# above 0.99. Each counts if `cells` is larger than its number of rows.
singles_out_together <- function(design, cells) {
  if (cells < 2) return(FALSE)
  design <- cbind(1, design)
  for (size in list(function(x) max(abs(x)), function(x) sqrt(sum(x^2))))   # squares of large numbers overflow
    design <- sweep(design, 2, pmax(apply(design, 2, size), .Machine$double.xmin), `/`)
  found <- svd(design, nv = 0)
  left <- found$u[, found$d > 1e-12 * found$d[1], drop = FALSE]
  leverage <- rowSums(left^2)
  if (cells == 2 || max(leverage) > 0.9) return(max(leverage) > 0.9)
  rows <- which(leverage > 0.09)
  between <- tcrossprod(left[rows, , drop = FALSE])
  diag(between) <- 0
  any(between^2 > outer(0.99 - leverage[rows], 0.99 - leverage[rows]))
}

# --- the model, as all sites agree on it. `meeting` has gathered(own), require(problems) and total(of), where
# of(normals) returns numbers by name, with noise unless `normals` is NULL ---

item <- function(x, shape = if (is.matrix(x)) list(ncol(x)) else list()) list(x = as.numeric(x), shape = shape)

mean_and_sd <- function(rows, first, second) {
  variance <- second / rows - (first / rows)^2
  list(mean = first / rows, sd = sqrt(ifelse(is.finite(variance), pmax(variance, 0), Inf)))
}
is_far <- function(own) abs(own$mean) > 100 * own$sd & !(own$mean == 1 & own$sd == 0)

means_and_sds <- function(meeting, values) {
  summed <- function(around) {
    all <- meeting$total(function(normals) {
      own <- list()
      for (name in names(around)) {
        sums <- sums_of(values[[name]], around[[name]], normals)
        shape <- if (is.matrix(values[[name]])) list(ncol(values[[name]])) else list()
        own[[paste("rows", name)]] <- item(NROW(values[[name]]))
        own[[paste("sum", name)]] <- item(sums[[1]], shape)
        own[[paste("squares", name)]] <- item(sums[[2]], shape)
      }
      own
    })
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
  sheet <- policy$sheet
  if (length(sheet$problem)) fail(sheet$problem)
  site <- policy$site
  floors <- policy$floors
  problems <- character()
  note <- function(name, rows, what) {
    at <- sheet$lines[rows]
    say(sprintf("%s: column '%s': %s %s", sheet$where, name, some_lines(at), what))
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
    each <- vapply(heard, function(own) own$kinds[[name]] %or% "unclear", "")
    # sites with Python tell of C(...) whether its levels are numbers or texts
    each <- setdiff(sub("^levels in .*", "factor", each), "empty")
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
  if (dropped) say(sprintf("%d of %d rows have a missing cell and are left out", dropped, rows))
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
  if (length(shared)) fail_at_all(paste(shared, collapse = "; "))
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
  sums_at <- function(centres, normals) sapply(names(centres), simplify = FALSE, function(name) {
    x <- table[[name]]$present
    item(c(length(x), unlist(sums_of(x, centres[[name]], normals))), list(3L))
  })
  of <- function(x) mean_and_sd(max(x[1], 1), x[2], x[3])
  all <- meeting$total(function(normals) c(own, sums_at(setNames(as.list(rep(0, length(shown))), shown), normals)))
  columns <- lapply(all[shown], of)
  again <- lapply(Filter(function(own) is.finite(own$mean) && is_far(own), columns), `[[`, "mean")
  if (length(again)) for (name in names(more <- meeting$total(function(normals) sums_at(again, normals)))) {
    part <- of(more[[name]])
    columns[[name]] <- list(mean = again[[name]] + part$mean, sd = part$sd)
  }
  steady <- c(study$constant, if (length(study$terms$response$columns) > 1) study$terms$response$columns)
  same <- c(Filter(function(name) length(levels[[name]]) == 1, factors), Filter(function(name) columns[[name]]$sd == 0,
      shown))
  for (name in setdiff(same, steady)) fail_at_all("column '", name, "' is the same in every row: leave it out")
  # the formula
  too_many <- function(dim) if (dim / rows > floors$parameters) meeting$require(sprintf(
    "%s: %d parameters are more than %g of the rows, the floor of the site: use fewer columns", site, dim,
        floors$parameters))
  single <- function(columns) if (floors$rare == "refuse" && length(columns)) {
    for (name in names(columns)) if (singles_out(columns[[name]], floors$cells)) return(meeting$require(sprintf(
      "%s: refused, in %s, fewer than %d rows differ from the most frequent value, the floor of the site. %s", site,
          name,
      floors$cells, "Leave the term out or merge levels")))
    if (singles_out_together(do.call(cbind, columns), floors$cells)) {
      too_many(length(columns))
      meeting$require(sprintf(
        "%s: refused, together the terms of the formula single out fewer than %d rows, the floor of the site. %s", site,
        floors$cells, "Leave a term out, or merge levels"))
    }
  }
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
    if (!response$level %in% levels[[response$columns]]) fail_at_all("the response has no level ", response$level)
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
    fail_at_all("the response is 0 in all rows of all sites")
  if (study$family == "normal" && sd <= 1e-12 * abs(mean)) fail_at_all("the response is the same number in all rows")
  too_many(ncol(design) + study$family %in% names(EXTRA))
  inside <- min(max(mean, 1e-3), 1 - 1e-3)
  start <- switch(study$family, normal = mean, bernoulli = , binomial = log(inside) - log1p(-inside), log(mean))
  unit <- if (study$family == "normal") sd else 1
  spread <- ifelse(figures$design$sd > 0, figures$design$sd, 1)
  loc <- c(if (study$family %in% c("bernoulli", "binomial")) 0 else start, rep(0, ncol(design) - 1))
  scale <- c(2.5 * unit, (2.5 * unit / spread)[-1])
  names(loc) <- names(scale) <- colnames(design)
  plain <- function(x) gsub("[ `']", "", x)
  priors <- study$priors %or% empty()
  names(priors) <- plain(names(priors))
  used <- character()
  for (k in seq_along(loc)) {
    keys <- plain(c(names(loc)[k], term_of[k], if (k > 1) "coefficients"))
    used <- c(used, keys)
    for (prior in priors[intersect(keys, names(priors))[1]]) if (!is.null(prior)) {
      loc[k] <- prior$loc
      scale[k] <- prior$scale
    }
  }
  for (key in setdiff(names(priors), used)) fail_at_all("the prior of ", key, " belongs to no coefficient")
  make_model(study$family, design, y, trials, centre = c(0, figures$design$mean[-1]), loc, scale, unit, start,
             length(study$sites), sum(vapply(heard, function(own) as.numeric(own$rows), 0)))
}
