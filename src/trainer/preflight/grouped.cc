#include "trainer/preflight/grouped.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tdock::trainer {

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  const int64_t sign = number < 0 ? 1 : 0;
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > sign; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::string Percent(double share) {
  const int decimals = share > 0 && share < 0.001 ? 3 : 1;
  return absl::StrFormat("%.*f %%", decimals, 100 * share);
}

std::string Mebibytes(int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  if (mebibytes >= 1024) return absl::StrFormat("%.2f GiB", mebibytes / 1024);
  return absl::StrFormat("%.0f MiB", mebibytes);
}

}  // namespace tdock::trainer
