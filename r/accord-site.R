#!/usr/bin/env Rscript
# A site without Python in a study of accord by files, in base R with the packages jsonlite and openssl.
#
#   Rscript accord-site.R keys identity                              make a key, print the public key
#   Rscript accord-site.R hash study.toml                            the hash that a policy lists
#   Rscript accord-site.R check study.toml site.toml                 can this site take part? Nothing leaves
#   Rscript accord-site.R answer study.toml site.toml board [--yes] [--wait SECONDS]
#                                                    make the next entry; with --wait, all of them
#
# LIMIT. A site with Python computes the next positions itself and refuses other ones. This program does not: it trusts
# the plan of the first site of the study, which must run Python. It checks that the plan names one of the functions in
# FUNCTIONS (the log density, its derivatives, and the mode of the site's rows), that no position is far from the prior,
# that all positions of the study stay below `points` of the policy, and that all sites have the same entries of all
# earlier steps. The noise follows the coordinates and radii of the plan, which it trusts too.
# It answers regressions (normal, bernoulli, binomial, poisson, negative_binomial) of studies with masks.

suppressPackageStartupMessages({library(jsonlite); library(openssl)})
# Names and texts are UTF-8, also where R starts without a locale.
if (!l10n_info()$`UTF-8`) for (name in c("C.UTF-8", "C.utf8", "en_US.UTF-8"))
  if (nzchar(suppressWarnings(Sys.setlocale("LC_CTYPE", name)))) break
# Files, model and density lie beside this file.
HERE <- if (sys.nframe() == 0) sub("^--file=", "", grep("^--file=", commandArgs(FALSE), value = TRUE)[1]) else
  unlist(lapply(sys.frames(), function(frame) frame$ofile))[1]
for (name in c("accord-data.R", "accord-model.R", "accord-density.R", "accord-noise.R"))
  source(file.path(dirname(HERE), name))
USERS_UMASK <- Sys.umask("077")        # files of the site are private, entries in the shared folder are not
VERSION <- "0.1.0"                     # the version of accord whose studies this program answers
HIDDEN <- c("masked", "coarse")        # contents whose numbers look random
LONGEST_SHOWN <- 2000                  # characters of a content that are shown before it leaves
# What plans evaluate: the parts of a plan, and the answer in words.
BOTH <- "slope_of and value_of"
FUNCTIONS <- list(value_of = c("points", "coordinates"), slope_of = c("points", "coordinates"),
                  expansion_of = c("argument 0", "points", "coordinates"),
                  mean_expansion = c("argument 0", "argument 1", "coordinates"),
                  mode_of = c("points", "coordinates"), jet_of = c("points", "coordinates"))
FUNCTIONS[[BOTH]] <- c("points 1", "points 2", "coordinates")
ANSWERS <- c(value_of = "values of the potential", slope_of = "values and gradients of the potential",
             expansion_of = "values, gradients and Hessians of the potential",
             mean_expansion = "mean value, gradient and Hessian of the potential",
             mode_of = "the potential, and the mode and curvature of this site's own rows",
             jet_of = "derivatives of the potential up to the third")
ANSWERS[BOTH] <- "values of the potential, at some positions with gradients"

pending <- function(step, sites, board) {
  begun <- sites[file.exists(entry_path(board, step, sites))]
  stop(structure(class = c("pending", "condition"), list(call = NULL, message = paste0(
    "step ", step, " waits for ", paste(sites, collapse = ", "),
    if (length(begun)) paste0(" (incomplete files of ", paste(begun, collapse = ", "), ")")))))
}
hex <- function(x) paste(as.character(unclass(as.raw(sha256(x)))), collapse = "")
text64 <- function(x) gsub("\n", "", base64_encode(x), fixed = TRUE)

identity_of <- function(policy) tryCatch(
  read_ed25519_key(base64_decode(trimws(readLines(policy$identity, 1L, warn = FALSE)))),
  error = function(e) fail(policy$identity, " holds no private key, see the command keys"),
  warning = function(e) fail(policy$identity, " holds no private key, see the command keys"))

# --- masks: 128-bit words with 64 fractional bits, as rows of 8 limbs of 16 bits, the lowest first ---

carry <- function(limbs) {
  for (k in 1:8) {
    over <- floor(limbs[, k] / 65536)
    limbs[, k] <- limbs[, k] - over * 65536
    if (k < 8) limbs[, k + 1] <- limbs[, k + 1] + over
  }
  limbs
}
split16 <- function(x) vapply(0:3, function(k) { x <- floor(x / 65536^k); x - floor(x / 65536) * 65536 },
    numeric(length(x)))
words_of <- function(x, is_whole) {    # as accord.posterior.masks.encoded does
  whole <- floor(abs(x))
  cut <- function(x) matrix(split16(x), ncol = 4)
  part <- ifelse(rep(is_whole, length.out = length(x)), 0, round((abs(x) - whole) * 2^64))
  carry(cbind(cut(part), cut(whole)) * ifelse(x < 0, -1, 1))
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

stream_of <- function(key, step, context, blocks) {
  key <- hmac(base64_decode(key), charToRaw(paste0("accord step 1", context)))
  as.raw(aes_ctr_encrypt(raw(16 * blocks), key, c(rev(le8(step + 1)), raw(8))))
}
masked <- function(words, keys, here, step, context) {
  for (other in names(keys)) {
    stream <- limbs_of(stream_of(keys[[other]], step, context, nrow(words)))
    words <- words + stream * (if (here - 1 < as.integer(other)) 1 else -1)
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
  # a pipe has no bytes, and would block
  if (!isTRUE(file.size(path) > 0)) return(NULL)
  if (!Sys.readlink(path) %in% c("", NA) || dir.exists(path) || file.size(path) > 2e8)
    fail(path, " is no file with an entry")
  bytes <- readBin(path, "raw", file.size(path))
  if (length(bytes) && tail(bytes, 1) == as.raw(10) && sum(bytes == as.raw(10)) >= 2) bytes
}

# The line that the site has signed. A carrier can change everything else in the file.
signed_line <- function(bytes) {
  line <- bytes[seq_len(match(as.raw(10), bytes) - 1)]
  if (length(line) && tail(line, 1) == as.raw(13)) head(line, -1) else line
}
is_odd <- function(x, left = 64) is.list(x) && (left == 0 || anyDuplicated(names(x)) ||
                                                any(vapply(x, is_odd, NA, left - 1)))
read_entry <- function(bytes, study, policy, step, site) {
  where <- paste("the entry of", site, "in step", step)
  end <- which(bytes == as.raw(10))
  line <- signed_line(bytes)
  text <- rawToChar(line)
  Encoding(text) <- "UTF-8"
  proof <- tryCatch(base64_decode(parse_json(rawToChar(bytes[(end[1] + 1):(end[2] - 1)]))$signature),
      error = function(e) raw())
  signed <- length(proof) == 64 && tryCatch(ed25519_verify(c(charToRaw("accord entry 1\n"), line), proof,
    read_ed25519_pubkey(base64_decode(policy$peers[[site]]))), error = function(e) FALSE)
  if (!isTRUE(signed)) fail(where, " is not signed by ", site, ": it was changed, or made by someone else")
  # fromJSON would open a file or an address that a text names
  entry <- tryCatch(parse_json(text), error = function(e) fail(where, " is no entry of a study"))
  # of a key twice, R reads the first one and Python the last, and R reads no text beyond a NUL character
  if (is_odd(entry) || grepl("\\u0000", text, fixed = TRUE))
    fail(where, " has a key twice or a NUL character, which R and Python read in different ways, or ",
         "values nested more than 64 deep")
  if (!identical(list(entry$study, as.integer(entry$step), entry$site), list(study$hash, as.integer(step), site)))
    fail(where, " is one of another study, step or site")
  # the text of the plan, whose digest the entry has
  from <- tail(gregexpr("\"written\": ", text, fixed = TRUE)[[1]], 1)
  plan <- if (from > 0) substr(text, from + 11, nchar(text) - 1)
  same <- tryCatch(identical(parse_json(plan), entry$written), error = function(e) FALSE)
  if (length(entry$written) && !(same && hex(charToRaw(plan)) == entry$plan))
    fail(where, " has a plan with another digest")
  entry
}

audit <- function(policy, ...) cat(json(list(time = format(Sys.time(), "%Y-%m-%dT%H:%M:%OS3+00:00", tz = "UTC"), ...)),
    "\n",
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
  take <- function() for (site in study$sites) {
    stored <- entry_at(store, S$step, site)
    new <- entry_at(board, S$step, site)
    if (is.null(new) || (!is.null(stored) && identical(signed_line(new), signed_line(stored)))) next
    if (site == policy$site) fail("the entry of ", site, " in step ", S$step, " is not the one that this site made. ",
      "If its folder was lost, the study cannot continue: begin a study with another seed")
    if (!is.null(stored))
      fail("the entry of ", site, " in step ", S$step, " differs from the one that this site received before")
    read_entry(new, study, policy, S$step, site)
    write_private(entry_path(store, S$step, site), new)
  }
  make <- function(words, plan, content) {
    line <- charToRaw(json(list(study = study$hash, step = S$step, site = policy$site, before = S$before, what = words,
                                plan = plan, written = empty(), content = content)))
    proof <- ed25519_sign(c(charToRaw("accord entry 1\n"), line), identity_of(policy))
    bytes <- c(line, as.raw(10), charToRaw(json(list(signature = text64(proof)))), as.raw(10))
    data <- file.path(own, "data.txt")
    if (S$step > 0 && !file.exists(data))
      write_private(data, charToRaw(policy$sheet$hash))
    audit(policy, study = study$hash, step = S$step, what = words, bytes = length(bytes), hash = hex(bytes),
          sent = if (any(HIDDEN %in% names(content))) "numbers under masks" else content)
    write_private(entry_path(store, S$step, policy$site), bytes)
    bytes
  }
  entries <- function() {
    take()
    found <- lapply(setNames(study$sites, study$sites), function(site) if (!is.null(bytes <- entry_at(store, S$step,
        site)))
      read_entry(bytes, study, policy, S$step, site))
    for (site in study$sites) if (!is.null(found[[site]]) && found[[site]]$before != S$before)
      fail(site, " has other entries of the steps before ", S$step, " than this site")
    refused <- Filter(function(one) is.list(one$content) && "refused" %in% names(one$content), found)
    if (length(refused)) {
      if (is.null(found[[policy$site]])) make("nothing, as another site refuses", "", list(refused = list()))
      fail("the study ends here: ", paste(head(cleaned(as.character(unlist(
        lapply(refused, function(one) one$content$refused)))), 50), collapse = "; "))
    }
    found
  }
  # One step: `own(plan, context)` makes this site's content. Without `what`, the first site plans.
  S$gather <- function(what, own, words) {
    found <- entries()
    leader <- found[[study$sites[1]]]
    if (is.null(what) && is.null(leader)) pending(S$step, study$sites[1], board)
    plan <- if (is.null(what)) leader$plan else hex(charToRaw(sprintf("{\"parts\": {}, \"what\": \"%s\"}", what)))
    if (is.null(what) && !length(leader$written))
      fail("the entry of ", study$sites[1], " in step ", S$step, " has no plan")
    if (is.null(found[[policy$site]])) {
      content <- own(leader$written, paste0(S$before, plan))
      make(if (is.function(words)) words(leader$written) else words, plan, content)
      found <- entries()
    }
    for (site in names(found)) if (!is.null(found[[site]]) && found[[site]]$plan != plan)
      fail(site, " evaluated another plan in step ", S$step, " than this site")
    if (length(missing <- study$sites[vapply(found, is.null, TRUE)])) pending(S$step, missing, board)
    for (site in study$sites) require_like(found[[site]]$content, found[[policy$site]]$content,
                                           paste("the entry of", site, "in step", S$step))
    hashes <- vapply(study$sites, function(site) hex(signed_line(entry_at(store, S$step, site))), "")
    S$before <- hex(charToRaw(paste(c(S$before, hashes), collapse = "")))
    S$step <- S$step + 1L
    found
  }
  S$refuse <- function(problems) {
    if (is.null(entries()[[policy$site]]))
      make("the reasons why this site refuses", "", list(refused = as.list(problems)))
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
  list(about = about, like = like, masked = list(shape = list(2L, nrow(words)), type = "<u8",
      base64 = text64(bytes_of(words))))
}

run_study <- function(study, policy, board) {
  S <- start_exchange(study, policy, board)
  state <- file.path(S$own, "masks.json")
  found <- S$gather("keys", function(plan, context) {
    key <- x25519_keygen()
    if (!file.exists(state)) write_private(state, charToRaw(json(list(
      private = text64(as.raw(key$data)), public = text64(as.raw(key$pubkey$data)), noise = text64(rand_bytes(32))))))
    list(identity = policy$peers[[policy$site]], accord = VERSION, masks = fromJSON(state)$public)
  }, "public keys of this site, and the version of accord there")
  versions <- unique(vapply(found, function(one) one$content$accord, ""))
  if (!identical(versions, VERSION))
    fail("all sites need accord ", VERSION, ", found ", cleaned(paste(versions, collapse = ", ")))
  keys <- tryCatch(fromJSON(state), error = function(e) fail("the keys of this site's masks are lost"))
  if (study$coarse && length(base64_decode(keys$noise %or% "")) != 32) fail("the key of this site's noise is lost")
  if (is.null(keys$keys)) {
    publics <- lapply(found, function(one) base64_decode(one$content$masks))
    if (anyDuplicated(publics) || keys$public != found[[policy$site]]$content$masks)
      fail("the keys of this site's masks are lost")
    private <- read_x25519_key(base64_decode(keys$private))
    write_private(state, charToRaw(json(list(public = keys$public, noise = keys$noise, agent = S$here - 1L,
                                             keys = pair_keys(private, S$here, publics, study$hash)))))
  }
  meeting <- list(
    gathered = function(own) lapply(S$gather("gathered", function(plan, context) own,
      "names, kinds and levels of columns, numbers of rows and missing cells, or floors"), `[[`, "content"),
    require = function(problems) if (length(problems)) S$refuse(problems),
    total = function(of) {
      items <- of(if (study$coarse) normals_of(base64_decode(keys$noise), S$before))
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
  asked <- list(wider = 0)
  repeat {
    before <- S$before
    found <- S$gather(NULL, function(plan, context) {
      if (identical(plan$what, "result")) return(NULL)
      if (study$coarse) plan <- (now <- asked_of(asked, plan, context))$plan
      parts <- lapply(plan$parts, part_of)
      known <- if (study$coarse) setdiff(names(FUNCTIONS), "mean_expansion") else names(FUNCTIONS)
      if (!isTRUE(plan$what %in% known) ||
          !all(names(parts) %in% c(FUNCTIONS[[plan$what]], if (study$coarse) "radii"))) fail(
        "the plan of ", study$sites[1], " evaluates ", cleaned(as.character(plan$what)),
        ": a site with R evaluates only ", paste(known, collapse = ", "))
      for (name in points_in(plan)) if (is.null(parts[[name]]))
        fail("the plan has no positions: points = true in [run]")
      # wider numbers are of the same positions
      count_points(S, policy, if (study$coarse && now$wider) 0 else length_of(plan))
      if (study$coarse) return(coarse_content(S, model, now, parts, context))
      x <- answer_of(model, plan$what, parts)
      masked_content(S, study, as.numeric(t(x)), FALSE, list(c(list("<f8"), as.list(dim(x) %or% length(x)))), NULL,
          context)
    }, function(plan) if (identical(plan$what, "result")) "the means and sds of the draws, which all sites have"
      else if (!plan$what %in% names(ANSWERS)) "the numbers of the step before, in more bytes"
      else paste0(ANSWERS[[plan$what]], if (study$coarse) ", with noise and rounded", ", at ", n <- length_of(plan),
                  if (n == 1) " position" else " positions"))
    done <- found[[study$sites[1]]]
    parts <- done$written$parts
    if (identical(done$written$what, "result"))
      return(data.frame(mean = revived(parts$means), sd = revived(parts$sds), row.names = model$names))
    if (study$coarse) {
      asked <- asked_of(asked, done$written, paste0(before, done$plan))
      asked$clipped <- clipped_in(found)
    }
  }
}

points_in <- function(plan) grep("^points( [0-9]+)?$", names(plan$parts), value = TRUE)
length_of <- function(plan) {
  # a mean of expansions is of the positions at offsets from another one
  of <- if (identical(plan$what, "mean_expansion")) "argument 1" else points_in(plan)
  counts <- vapply(plan$parts[of], function(one) {
    rows <- unlist((one$shape %or% one$points$shape)[1])
    if (!is.numeric(rows) || !isTRUE(rows == round(rows) && rows >= 0)) fail("the plan has an array without a shape")
    rows
  }, 0)
  if (length(counts)) sum(counts) else 1
}

count_points <- function(S, policy, points) {
  path <- file.path(S$own, "points.txt")
  before <- if (file.exists(path)) readLines(path, warn = FALSE) else "0"
  if (length(before) != 1 || !grepl("^[0-9]+$", before))
    fail(policy$site, ": its file points.txt is damaged and must be repaired")
  before <- as.numeric(before)
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
    if (is.na(owner) || tools::pskill(owner, 0L))
      fail("another process answers in ", folder, ": if none does, delete ", lock)
  }
  writeLines(as.character(Sys.getpid()), file.path(lock, "process"))
  on.exit(unlink(lock, recursive = TRUE))
  work()
}

release <- function(study, policy, board, yes) {
  store <- file.path(policy$folder, substr(study$hash, 1, 16), "entries")
  input <- file("stdin", "r")
  # other sites read the shared folder
  private <- Sys.umask(USERS_UMASK)
  on.exit({ Sys.umask(private); close(input) })
  for (folder in sorted(list.files(store, "^step-[0-9]+$"))) {
    step <- as.integer(sub("step-", "", folder))
    bytes <- entry_at(store, step, policy$site)
    if (is.null(bytes) || !is.null(entry_at(board, step, policy$site))) next
    entry <- fromJSON(rawToChar(bytes[seq_len(which(bytes == as.raw(10))[1] - 1)]), simplifyVector = FALSE)
    cat(sprintf("step %d, %d bytes: %s\n", step, length(bytes), entry$what))
    shown <- json(entry$content)
    if (!any(HIDDEN %in% names(entry$content)))
      cat("  ", substr(shown, 1, LONGEST_SHOWN), if (nchar(shown) > LONGEST_SHOWN) " ...", "\n", sep = "")
    if (!yes) {
      cat("release? [y/N]: ")
      if (!any(tolower(trimws(readLines(input, 1L))) %in% c("y", "yes")))
        fail("nothing leaves ", policy$site, ". The same command asks again.")
    }
    path <- entry_path(board, step, policy$site)
    dir.create(dirname(path), showWarnings = FALSE, recursive = TRUE)
    # others can put links to files of this site into the shared folder
    if (!Sys.readlink(dirname(path)) %in% c("", NA)) fail(dirname(path), " is a link to another folder")
    new <- paste0(path, ".new")
    unlink(new)
    # x: only a new file
    written <- tryCatch(file(new, "wxb"), error = function(e) fail("cannot write ", new))
    writeBin(bytes, written)
    close(written)
    if (!file.rename(new, path)) fail("cannot write ", path)
  }
}

said <- character()
say <- function(text) if (!text %in% said) {       # once, also while the program waits
  said <<- c(said, text)
  cat("this site only: ", text, "\n", sep = "")
}

answer <- function(study, policy, board, yes) with_lock(policy$folder, function() {
  data <- file.path(policy$folder, substr(study$hash, 1, 16), "data.txt")
  result <- tryCatch({
    policy$sheet <- read_sheet(study, policy)
    if (length(wrong <- refusals(study, policy))) fail(policy$site, ": refused, ", wrong[1])
    if (file.exists(data) && !identical(readLines(data, warn = FALSE), policy$sheet$hash))
      fail(policy$site, ": its data has changed since this study began")
    run_study(study, policy, board)
  }, pending = identity, error = function(e) {
    text <- if (inherits(e, "wrong")) conditionMessage(e) else error_of_r(e)
    audit(policy, study = study$hash, refused = text)
    release(study, policy, board, yes)
    fail(text)
  })
  release(study, policy, board, yes)
  if (inherits(result, "pending")) return(conditionMessage(result))
  cat("the study is finished\n")
  print(result)
  NULL
})

check <- function(study, policy) {
  policy$sheet <- sheet <- read_sheet(study, policy)
  wrong <- refusals(study, policy)
  if (length(wrong)) wrong <- paste0(policy$site, ": refused, ", wrong)
  needed <- c(study$terms$response$columns, vapply(study$terms$terms, `[[`, "", "column"))
  if (!length(sheet$problem)) for (name in setdiff(needed, names(sheet$columns))) wrong <- c(wrong, paste0(
    sheet$where, ": there is no column '", name, "', which the study needs (names must match exactly)"))
  kinds <- list()
  meeting <- list(
    gathered = function(own) { if (!is.null(own$kinds)) kinds <<- own$kinds; rep(list(own), length(study$sites)) },
    require = function(problems) if (length(problems)) fail(paste(problems, collapse = "; ")),
    total = function(of) lapply(of(NULL), function(own) length(study$sites) * own$x))
  perhaps <- tryCatch({ build_model(study, policy, meeting, say); NULL }, `of all` = conditionMessage,
                      wrong = function(e) { wrong <<- c(wrong, conditionMessage(e)); NULL })
  cat("study ", study$hash, "\n", policy$site, ": ", length(sheet$lines), " rows",
      if (length(kinds)) paste0("; ", paste0(names(kinds), " (", unlist(kinds), ")", collapse = ", ")), "\n", sep = "")
  if (length(perhaps)) cat("perhaps: with rows like these at all sites, ", perhaps, "\n", sep = "")
  if (length(wrong)) fail(paste0("wrong: ", wrong, collapse = "\n"))
  cat(policy$site, " can take part\n", sep = "")
}

main <- function(words) {
  yes <- "--yes" %in% words
  words <- setdiff(words, "--yes")
  at <- match("--wait", words, 0L)
  wait <- if (at) suppressWarnings(as.numeric(words[at + 1]))
  if (at) words <- words[-c(at, at + 1)]
  if (at && !isTRUE(wait > 0 && is.finite(wait))) fail("--wait needs a number of seconds")
  command <- words[1] %or% ""
  if (identical(command, "keys") && length(words) == 2) {
    if (file.exists(words[2])) fail(words[2], " exists: a key is never replaced")
    secret <- rand_bytes(32)
    writeLines(text64(secret), words[2])
    cat(text64(read_ed25519_key(secret)$pubkey$data), "\n", sep = "")
  } else if (identical(command, "hash") && length(words) == 2) cat(hex(charToRaw(text_of_file(words[2]))), "\n",
      sep = "")
  else if (identical(command, "check") && length(words) == 3) check(read_study(words[2]), read_policy(words[3]))
  else if (identical(command, "answer") && length(words) == 4) {
    study <- read_study(words[2])
    policy <- read_policy(words[3])
    waited <- ""
    while (!is.null(waits <- answer(study, policy, words[4], yes))) {
      if (waits != waited) cat(waited <- waits, "\n", sep = "")
      if (is.null(wait)) break
      Sys.sleep(wait)
    }
  } else fail("use: accord-site.R keys FILE | hash STUDY | check STUDY SITE | ",
                   "answer STUDY SITE BOARD [--yes] [--wait SECONDS]")
}

# warnings and unexpected errors of R may quote a cell
if (sys.nframe() == 0) tryCatch(suppressWarnings(main(commandArgs(TRUE))), error = function(e) {
  message(if (inherits(e, "wrong")) conditionMessage(e) else error_of_r(e))
  quit(status = 1)
})
