# The log density of a site in R: the potential that a study adds up over all sites, and its derivatives.
# accord-site.R reads this file. It needs base R and the package openssl.

NO_MASS <- 1e12                        # an agent's potential where it is not finite
# As in accord: Newton's steps to the mode of the site's own rows, the lengths of each, the length of the last one in
# standard deviations, and the least relative curvature.
MODE_STEPS <- 20
SHORTER <- c(1, 0.5, 0.25, 0.06, 0.01)
NEAR <- 0.1
FLAT <- 1e-9
ROWS_AT_ONCE <- 2048                   # more rows are answered in parts, as by Python

# potential = -(log likelihood) - (log prior) / sites, and its derivatives

make_model <- function(family, X, y, trials, centre, loc, scale, unit, start, sites, all_rows) {
  model <- list(family = family, X = X, y = y, trials = trials, centre = centre, loc = loc, scale = scale, unit = unit,
                sites = sites, all_rows = all_rows, parts = ceiling(nrow(X) / ROWS_AT_ONCE),
                names = c(colnames(X), if (family %in% names(EXTRA)) EXTRA[[family]]))
  model$constant <- switch(family, binomial = lchoose(trials, y), bernoulli = 0, normal = -log(2 * pi) / 2,
      -lgamma(y + 1))
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
  own <- list(value = sum(-r^2 / 2 - log(model$scale) - log(2 * pi) / 2), gradient = drop(-crossprod(to_u,
      r / model$scale)),
              hessian = -crossprod(to_u / model$scale), volume = 0, third = 0)
  if (length(x) == k) return(own)
  s <- exp(x[k + 1])
  extra <- if (model$family == "normal") c(-s / model$unit - log(model$unit), rep(-s / model$unit, 3))
    else c(-log1p(s^2) + log(2 / pi), -2 * s^2 / (1 + s^2), -4 * s^2 / (1 + s^2)^2,
           -8 * s^2 * (1 - s^2) / (1 + s^2)^3)
  list(value = own$value + extra[1] + x[k + 1], gradient = c(own$gradient, extra[2] + 1), volume = x[k + 1],
       hessian = rbind(cbind(own$hessian, 0), c(rep(0, k), extra[3])), third = extra[4])
}

# Log density of each row and its derivatives by the linear predictor e and by the log s of the last parameter.
rows_at <- function(model, e, s) {
  y <- model$y
  n <- model$trials
  p <- 1 / (1 + exp(-e))
  above <- pmax(e, 0) + log1p(exp(-abs(e)))
  switch(model$family,
    normal = {
      w <- exp(-2 * s)
      r <- y - e
      list(value = model$constant - s - r^2 * w / 2, e = r * w, ee = rep(-w, length(y)), s = r^2 * w - 1,
          es = -2 * r * w,
           ss = -2 * r^2 * w, eee = rep(0, length(y)), ees = rep(2 * w, length(y)), ess = 4 * r * w, sss = 4 * r^2 * w)
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
      three <- 3 * two - 2 * one + 2 * k^3 * sums(1 / steps^3)
      d <- y * (1 - p) - k * p
      v <- k * p * (1 - p)
      ess <- 2 * v - w * (1 - 2 * p) - k * p
      list(value = model$constant + sums(log(steps)) + y * (a - minus) - k * minus, e = d, ee = -w,
          s = one - d - k * minus,
           es = w - k * p, ss = two - (w - k * p) - k * minus + k * p, eee = -w * (1 - 2 * p),
           ees = w * (1 - 2 * p) - v, ess = ess, sss = three - ess - k * minus + 2 * k * p - v)
    })
}

# Value, gradient and Hessian (up to `order`) of the potential at x. `along(d)` is the Hessian's derivative along d.
potential_at <- function(model, x, order) {
  k <- ncol(model$X)
  has_extra <- length(x) > k
  prior <- prior_at(model, x)
  near <- prior$value - prior$volume >= model$lowest
  found <- list(value = Inf, gradient = -prior$gradient / model$sites, hessian = -prior$hessian / model$sites,
                along = function(d) 0 * found$hessian)
  if (!isTRUE(near)) return(found)
  own <- rows_at(model, drop(model$X %*% x[1:k]), if (has_extra) x[k + 1] else 0)
  second <- function(ee, es, ss) {
    h <- crossprod(model$X, model$X * ee)
    if (has_extra) rbind(cbind(h, crossprod(model$X, es)), c(crossprod(model$X, es), sum(ss))) else h
  }
  found$value <- -sum(own$value) - prior$value / model$sites
  if (order > 0) found$gradient <- found$gradient - c(crossprod(model$X, own$e), if (has_extra) sum(own$s))
  if (order > 1) found$hessian <- found$hessian - second(own$ee, own$es, own$ss)
  found$along <- function(d) {
    e <- drop(model$X %*% d[1:k])
    if (!has_extra) return(-second(own$eee * e))
    s <- d[k + 1]
    h <- -second(own$eee * e + own$ees * s, own$ees * e + own$ess * s, own$ess * e + own$sss * s)
    h[k + 1, k + 1] <- h[k + 1, k + 1] - prior$third * s / model$sites
    h
  }
  found
}

# The potential and its derivatives in the coordinates of a model, at x = origin + factor z.
potential_in <- function(model, z, order) {
  place <- model$place
  found <- potential_at(model, drop(place$origin + place$factor %*% z), order)
  moved <- function(h) crossprod(place$factor, h %*% place$factor)
  along <- found$along
  if (order > 0) found$gradient <- drop(crossprod(place$factor, found$gradient))
  if (order > 1) found$hessian <- moved(found$hessian)
  found$along <- function(d) moved(along(drop(place$factor %*% d)))
  found
}

# The numbers of `mode_of` in accord: the potential at x, and the mode and curvature of the site's own rows, H x - g and
# H, by Newton's method with absolute eigenvalues. Of more rows, parts are added, each with its share of the prior.
modes_of <- function(model, x) {
  rows <- nrow(model$X)
  part_of <- ceiling(seq_len(rows) / ceiling(rows / model$parts))
  Reduce(`+`, lapply(seq_len(model$parts), function(part) {
    own <- model
    at <- which(part_of == part)
    for (name in c("y", "trials", "constant")) if (length(own[[name]]) == rows) own[[name]] <- own[[name]][at]
    own$X <- own$X[at, , drop = FALSE]
    own$sites <- own$sites * model$parts
    mode_at(own, x)
  }))
}

mode_at <- function(model, x) {
  scaled <- function(h) {
    scale <- pmax(abs(diag(h)), .Machine$double.xmin)^-0.5
    c(list(scale = scale), eigen(h * outer(scale, scale), symmetric = TRUE))
  }
  here <- first <- potential_in(model, x, 2)
  usual <- function(at) all(is.finite(c(at$gradient, at$hessian)))
  for (count in seq_len(MODE_STEPS)) {
    if (!is.finite(here$value) || !usual(here)) break
    own <- scaled(here$hessian)
    size <- pmax(abs(own$values), FLAT * max(abs(own$values)))
    slope <- drop(crossprod(own$vectors, own$scale * here$gradient))
    step <- own$scale * drop(own$vectors %*% (slope / size))
    risen <- vapply(SHORTER, function(part) potential_in(model, x - part * step, 0)$value, 0) - here$value
    best <- which.min(ifelse(is.finite(risen), risen, Inf))
    if (!(is.finite(risen[best]) && risen[best] < 0 && sqrt(sum(slope^2 / size)) > NEAR)) break
    x <- x - SHORTER[best] * step
    here <- potential_in(model, x, 2)
  }
  if (!usual(here)) return(c(bounded(first$value, NO_MASS), rep(0, length(x) * (length(x) + 3) / 2)))
  own <- scaled(here$hessian)
  curved <- own$vectors %*% (pmax(own$values, 0) * t(own$vectors)) / outer(own$scale, own$scale)
  numbers <- c(drop(curved %*% x) - here$gradient, curved[lower.tri(curved, TRUE)])
  c(bounded(first$value, NO_MASS), numbers)
}

bounded <- function(x, most, parts = 1) if (is.infinite(most)) x else if (all(is.finite(x)))
  pmin(pmax(x, -most), most) else c(most * parts, rep(0, length(x) - 1))

# A part of a plan. Sites with Python do not read further keys, so they could not notice what these ask for.
part_of <- function(x) {
  known <- list(c("shape", "type", "values"), c("shape", "type", "base64"), c("origin", "factor"), "float",
                c("drawn", "mixture"), c("drawn", "mixture", "points"))
  if (is.list(x) && !any(vapply(known, setequal, NA, names(x)))) fail("the plan has a part of another format")
  revived(if (is.list(x) && !is.null(x$drawn)) x$points else x)
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

# What the plan asks for, as a matrix with one row per point (a vector for values, means and several functions).
answer_of <- function(model, what, parts) {
  several <- strsplit(what, " and ", fixed = TRUE)[[1]]
  if (length(several) > 1) return(unlist(lapply(seq_along(several), function(number) t(answer_of(model, several[number],
    list(points = parts[[paste("points", number)]], coordinates = parts$coordinates))))))
  dim <- length(model$names)
  place <- parts$coordinates %or% list(origin = rep(0, dim), factor = diag(dim))
  if (!is.matrix(place$factor)) place$factor <- diag(place$factor, length(place$factor))
  if (length(place$origin) != dim || !all(dim(place$factor) == dim))
    fail("the plan has coordinates of another dimension")
  model$place <- place
  if (what == "mode_of") {
    if (!identical(dim(parts$points), c(1L, dim))) fail("the plan has a position of another dimension")
    return(rbind(modes_of(model, as.numeric(parts$points))))
  }
  points <- parts$points
  most <- c(value_of = NO_MASS, slope_of = NO_MASS, jet_of = NO_MASS, mean_expansion = Inf)[what]
  if (is.na(most)) most <- parts[["argument 0"]]
  order <- c(value_of = 0, slope_of = 1, jet_of = 3)[what]
  if (is.na(order)) order <- 2
  offsets <- parts[["argument 1"]]
  if (what == "mean_expansion") points <- rep(parts[["argument 0"]], each = nrow(offsets)) + offsets
  if (!is.matrix(points) || ncol(points) != dim) fail("the plan has positions of another dimension")
  # k, j and i of all i <= j <= k, with k fastest
  triples <- if (order > 2) which(array(TRUE, rep(dim, 3)), arr.ind = TRUE) else matrix(0, 0, 3)
  triples <- triples[triples[, 3] <= triples[, 2] & triples[, 2] <= triples[, 1], , drop = FALSE]
  found <- apply(points, 1, function(z) {
    at <- potential_in(model, z, order)
    h <- at$hessian
    third <- if (order > 2) vapply(seq_len(dim), function(k) at$along(diag(dim)[, k]), h)
    bounded(c(at$value, if (order > 0) at$gradient, if (order > 1) h[lower.tri(h, TRUE)],
             if (order > 2) array(third, rep(dim, 3))[triples]), most, model$parts)
  })
  if (order == 0) found else if (what == "mean_expansion") rowMeans(found) else t(found)
}
