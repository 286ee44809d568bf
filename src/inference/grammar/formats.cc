#include "inference/grammar/schema_document.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

// RFC 3339, with the years 1 to 9999 and the days that each month has.
constexpr char kYear[] = R"((?:\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3}))";
constexpr char kLeapYear[] = R"((?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00))";
constexpr char kDays[] =
    R"((?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))";
constexpr char kTime[] = R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
// ISO 8601, as appendix A of RFC 3339 has it.
constexpr char kDurationOfDays[] = R"((?:\d{1,4}Y(?:\d{1,4}M(?:\d{1,4}D)?)?|\d{1,4}M(?:\d{1,4}D)?|\d{1,4}D))";
constexpr char kDurationOfHours[] = R"(T(?:\d{1,4}H(?:\d{1,4}M(?:\d{1,4}S)?)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}S))";
constexpr char kLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?";
constexpr char kMailbox[] = R"([A-Za-z0-9_+%-]{1,30}(?:\.[A-Za-z0-9_+%-]{1,30})?)";
constexpr char kByte[] = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
// H stands for up to four digits.
constexpr char kIpv6[] =
    "(?:(?:H:){7}H|(?:H:){1,7}:|(?:H:){1,6}:H|(?:H:){1,5}(?::H){1,2}|(?:H:){1,4}(?::H){1,3}|(?:H:){1,3}(?::H){1,4}|"
    "(?:H:){1,2}(?::H){1,5}|H:(?::H){1,6}|:(?::H){1,7}|::)";
constexpr char kHex[] = "[0-9A-Fa-f]";
constexpr char kUriChar[] = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})";
constexpr char kBase64Url[] = "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?";

std::string Date() { return absl::StrCat("(?:", kYear, "-", kDays, "|", kLeapYear, "-02-29)"); }
std::string Host() { return absl::StrCat(kLabel, "(?:\\.", kLabel, "){0,3}"); }
std::string Ipv4() { return absl::StrCat(kByte, "(?:\\.", kByte, "){3}"); }
std::string Ipv6() { return absl::StrReplaceAll(kIpv6, {{"H", absl::StrCat(kHex, "{1,4}")}}); }

std::string Duration() {
  return absl::StrCat("P(?:", kDurationOfDays, "(?:", kDurationOfHours, ")?|", kDurationOfHours, "|\\d{1,4}W)");
}

std::string Email() { return absl::StrCat(kMailbox, "@(?:", kLabel, "\\.){1,3}[A-Za-z]{2,20}"); }

// At most 1,300 characters, so that the usual limits of URLs need no states.
std::string Uri() {
  return absl::StrCat("[A-Za-z][A-Za-z0-9+.-]{0,15}://", Host(), "(?::[0-9]{1,4})?(?:/", kUriChar,
                      "{0,200})?(?:\\?(?:", kUriChar, "|[?]){0,100})?(?:#", kUriChar, "{0,50})?");
}

// `version`: a digit, or empty for any.
std::string Uuid(absl::string_view version) {
  const absl::string_view variant = version.empty() ? kHex : "[89ABab]";
  return absl::StrCat(kHex, "{8}-", kHex, "{4}-", version.empty() ? kHex : version, kHex, "{3}-", variant, kHex, "{3}-",
                      kHex, "{12}");
}

struct Format {
  absl::string_view name;
  std::string pattern;
};

const std::vector<Format>& Formats() {
  static const auto* const kFormats = new std::vector<Format>{
      {"base64url", kBase64Url},
      {"date", Date()},
      {"date-time", absl::StrCat(Date(), "T", kTime)},
      {"duration", Duration()},
      {"email", Email()},
      {"hostname", Host()},
      {"ipv4", Ipv4()},
      {"ipv6", Ipv6()},
      {"ipvanyaddress", absl::StrCat("(?:", Ipv4(), "|", Ipv6(), ")")},
      {"time", kTime},
      {"uri", Uri()},
      {"uuid", Uuid("")},
      {"uuid1", Uuid("1")},
      {"uuid3", Uuid("3")},
      {"uuid4", Uuid("4")},
      {"uuid5", Uuid("5")},
      // Any text has these.
      {"binary", ""},
      {"directory-path", ""},
      {"file-path", ""},
      {"password", ""},
      {"path", ""},
  };
  return *kFormats;
}

}  // namespace

absl::StatusOr<std::string> PatternOfFormat(absl::string_view format) {
  std::vector<absl::string_view> names;
  for (const Format& known : Formats()) {
    if (known.name == format) return known.pattern;
    names.push_back(known.name);
  }
  return absl::NotFoundError(absl::StrCat("is '", EscapeForMessage(format),
                                          "', which is not supported; those that are: ", absl::StrJoin(names, ", ")));
}

}  // namespace tdock::inference
