# Numbers of metafor for tests/test_meta_analysis.py: Rscript tests/data/metafor.R > tests/data/metafor.json
library(metafor); library(jsonlite)
sets <- list(
  bcg = with(escalc(measure="RR", ai=tpos, bi=tneg, ci=cpos, di=cneg, data=dat.bcg), list(yi=as.numeric(yi), sei=sqrt(vi))),
  alike = list(yi=c(.11,.12,.10,.13), sei=c(.2,.15,.3,.1)),
  three = list(yi=c(-1,.5,2), sei=c(.4,.5,.3)),
  two = list(yi=c(.2,.9), sei=c(.2,.3)))
one <- function(s) {
  fit <- function(m) rma(yi=s$yi, sei=s$sei, method=m, control=list(threshold=1e-12, maxiter=1000, stepadj=.5))
  f <- fit("EE"); d <- fit("DL"); r <- fit("REML")
  of <- function(x) list(estimate=as.numeric(x$beta), se=x$se, low=x$ci.lb, high=x$ci.ub, tau=sqrt(x$tau2))
  # metafor has normal quantiles here; Riley, Higgins & Deeks (2011) take t quantiles
  k <- length(s$yi)
  predicted <- if (k > 2) as.numeric(r$beta) + c(-1, 1) * qt(.975, k - 2) * sqrt(r$tau2 + r$se^2) else NULL
  list(yi=s$yi, sei=s$sei, fixed=of(f), dl=of(d), reml=of(r), Q=f$QE, p=f$QEp, I2=d$I2,
       predicted=predicted)
}
cat(toJSON(lapply(sets, one), digits=15, auto_unbox=TRUE, pretty=TRUE, null="null"), "\n")
