# Draws of accord in R, by the package reticulate. Set the Python with accord by the environment variable
# RETICULATE_PYTHON, or by reticulate::use_virtualenv, before the first call.
#
#   source("accord.R")
#   draws <- accord_sample(list(north = data1, south = data2), "died ~ scale(age) + ward", "bernoulli", seed = 1)
#   draws <- accord_result("study.toml", "board")
#
# Both return a data frame of the class of posterior::as_draws_df: one column per parameter, and .chain, .iteration and
# .draw. Its attribute "certificate" has the verdict of the run's checks.

# The Python package. Errors name what is missing.
accord_module <- function() {
  if (!requireNamespace("reticulate", quietly = TRUE)) stop("install the package reticulate", call. = FALSE)
  if (!reticulate::py_module_available("accord"))
    stop("this Python has no accord: set RETICULATE_PYTHON to the Python of an environment that has it", call. = FALSE)
  reticulate::import("accord", convert = FALSE)
}

# The draws of a run, which all sites share.
accord_draws <- function(run) {
  builtins <- reticulate::import_builtins(convert = FALSE)
  # lists, as older versions of reticulate cannot read arrays of NumPy 2
  of <- function(x) unlist(reticulate::py_to_r(builtins$list(x)))
  sizes <- of(run$average$shape)                 # chain, draw, parameter
  flat <- matrix(of(run$average$ravel()$tolist()), ncol = sizes[3], byrow = TRUE)
  colnames(flat) <- of(run$names)
  found <- data.frame(flat, .chain = rep(seq_len(sizes[1]), each = sizes[2]),
                      .iteration = rep(seq_len(sizes[2]), sizes[1]), .draw = seq_len(nrow(flat)), check.names = FALSE)
  class(found) <- c("draws_df", "draws", "tbl_df", "tbl", "data.frame")
  attr(found, "certificate") <- reticulate::py_to_r(builtins$str(run$certificate))
  found
}

# Sample the posterior of a regression from tables that are all in this process.
#
# tables: a named list with one data frame for each site. formula, family: as in accord.models.glm. priors: a named list
# of objects of Python, such as accord_module()$models$priors$Normal(0, 1). draws, chains, seed: of the run. missing:
# "error", "drop" (leave rows with NA out) or "indicator". positive: a named list, such as list(died = "yes"). Further
# arguments go to accord.models.glm.
#
# Factors are texts in Python: their reference level is the first in sorted order, whatever levels() says. Errors count
# rows from 0.
accord_sample <- function(tables, formula, family = "normal", priors = NULL, draws = 1000, chains = 4, seed = 0,
                          missing = "error", positive = NULL, ...) {
  if (!is.list(tables) || is.data.frame(tables) || is.null(names(tables)))
    stop("tables must be a named list with one data frame for each site", call. = FALSE)
  accord <- accord_module()
  plain <- lapply(tables, function(table) lapply(as.list(as.data.frame(table)), function(column)
    if (is.numeric(column)) as.list(as.numeric(column))
    else as.list(ifelse(is.na(column), "", as.character(column)))))     # "" is a missing cell
  as_dict <- function(x) reticulate::py_dict(names(x), unname(x), convert = FALSE)
  sites <- as_dict(lapply(plain, as_dict))
  study <- accord$data$as_study(sites, formula = formula, missing = missing,
                                positive = if (length(positive)) as_dict(positive))
  post <- accord$models$glm(study, formula, family, priors = if (length(priors)) as_dict(priors), ...)
  accord_draws(accord$sample(post, accord$Network$star(length(tables)), draws = as.integer(draws),
                             chains = as.integer(chains), seed = as.integer(seed)))
}

# The draws of a finished study, from its document and the folder with the entries of all sites. It needs no rows.
#
# public: a named list of the public keys of all sites. Without it, the keys that the entries name are used.
accord_result <- function(study, folder, public = NULL) {
  for (path in c(study, folder)) if (!file.exists(path)) stop("there is no file or folder ", path, call. = FALSE)
  accord_module()
  federation <- reticulate::import("accord.federation", convert = FALSE)
  keys <- if (length(public)) reticulate::py_dict(names(public), unname(public), convert = FALSE)
  accord_draws(federation$result(path.expand(study), path.expand(folder), keys))
}
