#include "dock/table/name.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/table/limits.h"

namespace tdock::dock {
namespace {

constexpr size_t kMaxBytes = 255;
constexpr size_t kMaxTagBytes = 1024;

absl::Status Refuse(absl::string_view what, absl::string_view why, absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": the name ", why, ": '", EscapeForMessage(name), "'"));
}

}  // namespace

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError(absl::StrCat(what, ": the name is empty"));
  if (name.size() > kMaxBytes) {
    return Refuse(what, absl::StrCat("has ", name.size(), " bytes and may have ", kMaxBytes), name);
  }
  for (absl::string_view rest = name; !rest.empty();) {
    const std::optional<Utf8Char> next = FirstUtf8Char(rest);
    if (!next) return Refuse(what, "is not UTF-8", name);
    if (IsControl(next->code)) return Refuse(what, "has a control character", name);
    if (IsUnprintable(next->code)) return Refuse(what, "has an invisible character", name);
    rest.remove_prefix(next->bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckTags(const Tags& tags) {
  if (tags.size() > kMaxTags) {
    return absl::InvalidArgumentError(
        absl::StrCat(tags.size(), " tags for a row; at most ", kMaxTags, " are possible"));
  }
  for (const auto& [name, value] : tags) {
    TDOCK_RETURN_IF_ERROR(CheckName("tag", name));
    if (value.size() <= kMaxTagBytes && !FindInvalidUtf8(value).has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the value of tag '", name, "' must have at most ", kMaxTagBytes,
                                                   " bytes, of UTF-8; it has ", value.size()));
  }
  return absl::OkStatus();
}

}  // namespace tdock::dock
