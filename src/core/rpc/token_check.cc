#include "core/rpc/token_check.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace tdock::rpc {
namespace {

bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

}  // namespace

absl::Status CheckToken(const std::string& token, std::optional<absl::string_view> shown) {
  if (token.empty()) return absl::OkStatus();
  if (!shown.has_value()) {
    return absl::UnauthenticatedError("this server requires a token, and the call has none");
  }
  if (!EqualInConstantTime(*shown, absl::StrCat("Bearer ", token))) {
    return absl::UnauthenticatedError("the token of the call is not the server's");
  }
  return absl::OkStatus();
}

}  // namespace tdock::rpc
