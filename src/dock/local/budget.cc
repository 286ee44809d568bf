#include "dock/local/budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tdock::dock {
namespace {

// Beyond every budget where it does not fit.
int64_t Product(int64_t rows, int64_t bytes) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  int64_t product;
  return __builtin_mul_overflow(rows, bytes, &product) || product > kHuge ? kHuge : product;
}

}  // namespace

int64_t Budget::BytesOfRow(const Use& use) const {
  if (row_bytes_ > 0) return row_bytes_;
  const int64_t gone = static_cast<int64_t>(use.rows_ever) - use.rows_here;
  const int64_t of_gone = gone > 0 ? gone_bytes_ / gone : 0;
  const int64_t of_live = use.rows_here > 0 ? live_bytes_ / use.rows_here : 0;
  return std::max(of_gone, of_live);
}

int64_t Budget::Needed(const Claim& claim, const Use& use) const {
  return std::max(claim.bytes, Product(claim.rows, BytesOfRow(use)));
}

int64_t Budget::Charged(const Use& use) const {
  const int64_t to_come =
      std::max<int64_t>(Product(use.rows + pending_.rows, BytesOfRow(use)) - live_bytes_, pending_.bytes);
  return use.held + to_come;
}

absl::Status Budget::CheckEver(const Claim& claim, const Use& use) const {
  if (max_rows_ > 0 && claim.rows > max_rows_) {
    return absl::ResourceExhaustedError(absl::StrCat("the put needs room for ", claim.rows,
                                                     " rows, those of its groups included; max_rows is ", max_rows_));
  }
  // The average that rows need may change; the size of the batch and row_bytes do not.
  const int64_t least = std::max(claim.bytes, row_bytes_ > 0 ? Needed(claim, use) : 0);
  if (max_bytes_ == 0 || least <= max_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the put needs room for ", least, " bytes; max_bytes is ", max_bytes_));
}

std::string Budget::Explain(const Claim& claim, const Use& use) const {
  std::string text = absl::StrCat("waited for room for ", claim.rows, " rows");
  if (max_rows_ > 0) {
    absl::StrAppend(&text, ": ", use.rows + pending_.rows, " of max_rows ", max_rows_, " exist or are admitted");
  }
  if (max_bytes_ > 0) {
    absl::StrAppend(&text, ": of max_bytes ", max_bytes_, ", ", use.held, " are held and ", Charged(use) - use.held,
                    " reserved; the put needs ", Needed(claim, use));
  }
  return text;
}

void Budget::Begin(const Claim& claim) {
  pending_.rows += claim.rows;
  pending_.bytes += claim.bytes;
}

void Budget::End(const Claim& claim) {
  pending_.rows -= claim.rows;
  pending_.bytes -= claim.bytes;
}

}  // namespace tdock::dock
