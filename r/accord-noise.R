# Coarse answers of a site in R: noise, rounding and masks of what it sends, as accord/posterior/coarse.py has them.
# accord-site.R reads this file. It needs base R and the package openssl.
#
# Sds, grids and widths follow from public facts only: the numbers of sites, parameters and rows of all sites, and the
# distance of a position from the middle of the posterior (the plan's `radii`). No sd is below the one at distance 0.

KINDS <- c(value_of = "value", slope_of = "slope", expansion_of = "expansion", mode_of = "expansion", jet_of = "jet")
SIGMA <- 0.325                         # most noise in a sum of potentials near the mode
NEARBY <- 3                            # radius of near positions, beyond the root of the dimension
AT_ORIGIN <- 0.05                      # noise of the potential at the first origin, relative to other positions
WIDEST <- 4                            # most bytes of a number
MASSLESS <- 1e6                        # rise of a potential from which on a position has no mass
NOWHERE <- 1e12                        # a sum of potentials of which one is clipped

# --- secret normal numbers: the same ones for the same context, so that they cannot be averaged away ---

# A function of n that returns the next n standard normal numbers of a context.
normals_of <- function(secret, context) {
  key <- hmac(secret, charToRaw(paste0("accord noise of R 1", context)))
  blocks <- 0
  function(n) {
    if (n == 0) return(numeric())
    size <- ceiling(n / 2)             # blocks of 16 bytes, for two numbers each
    bytes <- aes_ctr_encrypt(raw(16 * size), key, c(raw(8), rev(le8(blocks))))
    blocks <<- blocks + size
    pieces <- matrix(readBin(as.raw(bytes), "integer", 4 * n, 2L, FALSE, "little"), 4)
    pieces[4, ] <- pieces[4, ] %/% 2^12
    # 52 bits, as the centre of an interval in (0, 1)
    qnorm((colSums(pieces * 2^c(36, 20, 4, 0)) + 0.5) * 2^-52)
  }
}

# Sum of differences from a centre and of their squares, for each column. With noise: half a standard deviation of the
# numbers, rounded up to a power of two, in the sum, and its square in the squares of differences from the mean.
sums_of <- function(x, centre, normals = NULL) {
  x <- as.matrix(x)
  apart <- x - rep(centre, each = nrow(x))
  found <- list(colSums(apart), colSums(apart^2))
  if (is.null(normals) || !length(x)) return(found)
  sd <- sqrt(colMeans((x - rep(colMeans(x), each = nrow(x)))^2))
  is_spread <- apply(x, 2, max) > apply(x, 2, min) & is.finite(sd)
  size <- ifelse(is_spread, 2^(ceiling(log2(ifelse(is_spread, sd, 1))) - 1), 0)
  noise <- size * normals(ncol(x))
  list(found[[1]] + noise, found[[2]] + 2 * colMeans(apart) * noise + size^2 * normals(ncol(x)))
}

# --- noise, grid and width of each number ---

sigma_of <- function(sites) {
  digits <- 1 - floor(log10(SIGMA / sqrt(sites)))
  floor(SIGMA / sqrt(sites) * 10^digits) / 10^digits
}
# Numbers rounded to 9 binary digits, as radii of two machines differ in the last ones.
short <- function(x) {
  power <- ifelse(x > 0, 2^(floor(log2(x)) + 1), 1)
  round(x / power * 512) / 512 * power
}

# `radius` has one distance per position. All numbers of a position follow one another.
coder_of <- function(kind, radius, sites, dim, rows) {
  near <- sqrt(dim) + NEARBY
  expands <- kind %in% c("expansion", "jet")
  gradients <- if (expands || kind == "slope") dim else 0
  hessians <- if (expands) dim * (dim + 1) / 2 else 0
  part <- rep(1:4, c(1, gradients, hessians, if (kind == "jet") hessians * (dim + 2) / 3 else 0))
  value <- pmax(sigma_of(sites), short(0.1 * pmax(0, radius^2 - near^2) / 2 / sites))
  times <- pmax(1, short(radius / near))
  gradient <- if (expands) min(0.3 / sqrt(dim), 0.15) * times else pmax(0.2, short(0.1 * radius / sqrt(dim)))
  noise <- cbind(value, gradient / sqrt(sites), min(0.15 / dim, 0.05) * times / sqrt(sites),
                 min(0.3 / dim^1.5, 0.1) / sqrt(sites))[, part, drop = FALSE]
  is_value <- rep(part == 1, each = length(radius))
  grid <- ifelse(is_value, 0.5, 1) * noise
  unlike <- sqrt(rows) / sites
  slope <- unlike + radius
  need <- cbind(pmax(8 * slope * pmax(radius, 1), 200), 8 * slope, 8 * slope, 8)[, part, drop = FALSE]
  bits <- log2(2 * sites * apply(pmax(need / grid, 500), 2, max))
  width <- pmin(pmax(ceiling((bits + 0.1) / 8), if (expands) c(WIDEST, 3, 3, 1)[part] else 1), WIDEST)
  # at a far position, an agent shows neither values that rise steeply nor their derivatives
  rise <- ifelse(radius < near, Inf, radius^2 + 8 * unlike * pmin(radius, 2 * near))
  shown <- cbind(if (expands) Inf else rise, 2 * rise / pmax(radius, 1), rise, rise)[, part, drop = FALSE]
  each <- function(x) as.vector(t(matrix(x, length(radius), length(part))))
  list(first = rep((seq_along(radius) - 1) * length(part) + 1, each = length(part)),
       noise = each(noise), grid = each(grid), width = rep(width, length(radius)),
       # expansions only shape proposals, and get no correction
       added = each(if (expands) 0 else is_value * (noise^2 + grid^2 / 12) / 2),
       value = each(is_value), near = rep(radius < near, each = length(part)), shown = each(shown))
}
coder_of_origin <- function(sites, is_first) {
  noise <- sigma_of(sites) * (if (is_first) AT_ORIGIN else 1)
  list(first = 1, noise = noise, grid = noise * 0.5, width = WIDEST, added = 0, value = FALSE, near = TRUE,
       shown = Inf)
}
beside <- function(one, other) {
  other$first <- other$first + length(one$first)
  Map(c, one, other)
}

# Noisy numbers as integers modulo 2^(8 width), and last whether one was clipped that must not be.
message_of <- function(noisy, coder, sites) {
  most <- floor((2^(8 * coder$width - 1) - 1) / sites)
  levels <- round(noisy / coder$grid)
  low <- levels < -most
  high <- levels > most
  # a position without mass is clipped on purpose
  massless <- (coder$added > 0 & noisy > MASSLESS)[coder$first]
  matters <- coder$near & !massless
  clipped <- any(low & (coder$value | matters)) || any(high & matters & noisy < NOWHERE / 10)
  levels <- pmin(pmax(levels, -most), most)
  # values without their gradients would look like another mode
  size <- ifelse(coder$value, noisy, abs(noisy))
  high <- round(size / coder$grid) > most | size > coder$shown
  hidden <- coder$first %in% coder$first[high] & coder$value[coder$first]
  levels <- ifelse(hidden, ifelse(coder$value, most, 0), levels)
  c(levels %% 2^(8 * coder$width), clipped)
}

# --- one step ---

# What a step asks for, given the step before: the plan and context of the first message, how many wider ones follow it,
# and the origins of coordinates so far, of which each is sent once.
asked_of <- function(before, plan, context) {
  if (isTRUE(grepl(", wider, ", plan$what, fixed = TRUE))) {
    if (!identical(plan$what, paste0(before$plan$what, ", wider, ", before$wider + 1)))
      fail("the plan asks for wider numbers of another step")
    if (!isTRUE(before$clipped > 0)) fail("the plan asks for wider numbers, and no number was clipped")
    before$wider <- before$wider + 1
    return(before)
  }
  # values and gradients are relative to the potential at the origin
  origin <- if (!is.null(plan$parts$coordinates) && isTRUE(grepl("value_of|slope_of", plan$what)))
    hex(writeBin(as.numeric(revived(plan$parts$coordinates$origin)), raw(), endian = "little"))
  list(plan = plan, context = context, wider = 0, is_relative = !is.null(origin),
       needs_origin = !is.null(origin) && !origin %in% before$origins, is_first = !length(before$origins),
       origins = union(before$origins, origin))
}

# This site's numbers with noise, and the coder of their width.
noisy_of <- function(model, asked, parts, normals) {
  several <- strsplit(asked$plan$what, " and ", fixed = TRUE)[[1]]
  dim <- length(model$names)
  counts <- vapply(parts[points_in(asked$plan)], NROW, 0L)
  if (!is.numeric(parts$radii) || length(parts$radii) != sum(counts) || !all(is.finite(parts$radii) & parts$radii >= 0))
    fail("the plan has no radii of its positions: points = true in [run]")
  radii <- split(parts$radii, rep(seq_along(several), counts))
  coder <- Reduce(beside, Map(function(what, radius) coder_of(KINDS[[what]], radius, model$sites, dim, model$all_rows),
                              several, radii))
  x <- as.numeric(t(answer_of(model, asked$plan$what, parts)))
  if (asked$is_relative) {
    base <- answer_of(model, "value_of", list(points = matrix(0, 1, dim), coordinates = parts$coordinates))
    x[coder$value] <- x[coder$value] - base
  }
  if (asked$needs_origin) {
    x <- c(x, base)
    coder <- beside(coder, coder_of_origin(model$sites, asked$is_first))
  }
  noisy <- x + coder$added + coder$noise * normals(length(x))
  noisy[!is.finite(noisy)] <- Inf
  for (time in seq_len(asked$wider)) {
    if (all(coder$width == WIDEST)) fail("the plan asks for numbers of more than ", WIDEST, " bytes")
    coder$width <- pmin(coder$width + 1, WIDEST)
  }
  list(noisy = noisy, coder = coder)
}

# The bytes of a masked message: `width` bytes of each integer, the lowest first.
coarse_content <- function(S, model, asked, parts, context) {
  state <- fromJSON(file.path(S$own, "masks.json"), simplifyVector = FALSE)
  found <- noisy_of(model, asked, parts, normals_of(base64_decode(state$noise), asked$context))
  width <- c(found$coder$width, WIDEST)
  integers <- message_of(found$noisy, found$coder, model$sites)
  for (other in names(state$keys)) {
    bytes <- stream_of(state$keys[[other]], S$step, context, ceiling(length(integers) / 4))
    halves <- matrix(readBin(bytes, "integer", 2 * length(integers), 2L, FALSE, "little"), 2)
    mask <- halves[1, ] + 65536 * halves[2, ]
    integers <- (integers + mask * (if (S$here - 1 < as.integer(other)) 1 else -1)) %% 2^(8 * width)
  }
  used <- outer(seq_len(WIDEST), width, `<=`)
  bytes <- floor(rep(integers, each = WIDEST) / 256^(seq_len(WIDEST) - 1)) %% 256
  list(coarse = list(shape = list(sum(width)), type = "|u1", base64 = text64(as.raw(bytes[used]))))
}

# The number of sites with a clipped number, from the last 4 bytes of all messages.
clipped_in <- function(entries) {
  flags <- lapply(entries, function(one) {
    sent <- one$content$coarse
    bytes <- tail(if (is.null(sent$base64)) unlist(sent$values) else as.integer(base64_decode(sent$base64)), WIDEST)
    if (is.numeric(bytes) && length(bytes) == WIDEST) sum(bytes * 256^(seq_len(WIDEST) - 1)) else NA
  })
  total <- sum(unlist(flags)) %% 2^32
  if (!isTRUE(total <= length(entries))) fail("the masks did not cancel")
  total
}
