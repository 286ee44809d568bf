#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/status.h"

namespace tdock::text {
namespace {

// Below it, characters are never changed by NFC, and never join with the one before.
constexpr char32_t kFirstCombining = 0x300;
// Cost of decomposing or composing one character.
constexpr size_t kWorkOfCharacter = 4;

struct CodeRange {
  char32_t first, last;
};

// The characters with a decomposition or a combining class that Unicode 9 does not have. `tokenizers` normalises by
// that version, so models have never seen these normalised.
constexpr CodeRange kNewerThanUnicode9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9}};

bool IsInert(char32_t code) {
  const auto* const end = std::end(kNewerThanUnicode9);
  const auto* const found = std::lower_bound(std::begin(kNewerThanUnicode9), end, code,
                                             [](const CodeRange& range, char32_t c) { return range.last < c; });
  return found != end && found->first <= code;
}

struct Pending {
  CharChange character;
  int combining_class;
};

int CombiningClass(char32_t code) {
  return IsInert(code) ? 0 : utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class;
}

std::optional<char32_t> Composed(char32_t first, char32_t second) {
  std::array<utf8proc_int32_t, 2> pair = {static_cast<utf8proc_int32_t>(first), static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  if (utf8proc_normalize_utf32(pair.data(), 2, options) != 1) return std::nullopt;
  const auto composed = static_cast<char32_t>(pair[0]);
  return IsInert(composed) ? std::nullopt : std::optional(composed);
}

// Appends the decomposition of a character; what it begins with stands for it, the rest is added.
void Decompose(char32_t code, bool compatible, std::vector<Pending>& out) {
  if (IsInert(code)) {
    out.push_back({{code, 0}, 0});
    return;
  }
  std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition, of U+FDFA, has 18 characters
  const int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
  int last_class = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(), parts.size(),
                              static_cast<utf8proc_option_t>(options), &last_class);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const auto part = static_cast<char32_t>(parts[i]);
    out.push_back({{part, i == 0 ? 0 : 1}, CombiningClass(part)});
  }
}

void OrderCanonically(std::vector<Pending>& characters) {
  const auto starts = [](const Pending& p) { return p.combining_class == 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    if (starts(*begin)) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, characters.end(), starts);
    std::stable_sort(begin, end,
                     [](const Pending& a, const Pending& b) { return a.combining_class < b.combining_class; });
    begin = end;
  }
}

// Definition D117 of the Unicode standard. A joined character stands for what its two parts stood for.
absl::StatusOr<std::vector<CharChange>> Compose(const std::vector<Pending>& characters, EncodeBudget& budget) {
  std::vector<CharChange> composed;
  std::optional<size_t> starter;
  int last_class = -1;  // of what lies between the starter and here; -1: nothing
  for (const Pending& next : characters) {
    TDOCK_RETURN_IF_ERROR(budget.Spend(kWorkOfCharacter));
    const bool reachable = starter && last_class < next.combining_class;
    if (const auto joined = reachable ? Composed(composed[*starter].code, next.character.code) : std::nullopt) {
      composed[*starter] = {*joined, composed[*starter].change + next.character.change - 1};
      continue;
    }
    if (next.combining_class == 0) {
      starter = composed.size();
      last_class = -1;
    } else {
      last_class = next.combining_class;
    }
    composed.push_back(next.character);
  }
  return composed;
}

}  // namespace

bool MayNormalize(absl::string_view text, NormalForm form) {
  const char32_t first = form == NormalForm::kNfc ? kFirstCombining : 0x80;
  while (!text.empty()) {
    const Utf8Char next = *FirstUtf8Char(text);
    if (next.code >= first) return true;
    text.remove_prefix(next.bytes);
  }
  return false;
}

absl::StatusOr<std::vector<CharChange>> Normalized(absl::string_view text, NormalForm form, EncodeBudget& budget) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  std::vector<Pending> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = *FirstUtf8Char(text);
    Decompose(next.code, compatible, characters);
    text.remove_prefix(next.bytes);
    TDOCK_RETURN_IF_ERROR(budget.Spend(kWorkOfCharacter));
  }
  OrderCanonically(characters);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) return Compose(characters, budget);
  std::vector<CharChange> decomposed;
  decomposed.reserve(characters.size());
  for (const Pending& p : characters) decomposed.push_back(p.character);
  return decomposed;
}

absl::StatusOr<std::vector<CharChange>> Lowercased(absl::string_view text, EncodeBudget& budget) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the only one that becomes two
  constexpr char32_t kDotAbove = 0x307;
  std::vector<CharChange> lowercase;
  lowercase.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = *FirstUtf8Char(text);
    text.remove_prefix(next.bytes);
    TDOCK_RETURN_IF_ERROR(budget.Spend(next.bytes));
    if (next.code == kCapitalIWithDot) {
      lowercase.push_back({U'i', 0});
      lowercase.push_back({kDotAbove, 1});
    } else {
      lowercase.push_back({static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(next.code))), 0});
    }
  }
  return lowercase;
}

bool IsWhiteSpace(char32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool IsWordChar(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  // Alphabetic symbols (Other_Alphabetic), and the joiners.
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) || code == 0x200C ||
         code == 0x200D;
}

void AppendUtf8(char32_t code, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

Utf8Char LastUtf8Char(absl::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && !BeginsUtf8Char(text[begin])) --begin;
  return *FirstUtf8Char(text.substr(begin));
}

int64_t CountUtf8Chars(absl::string_view text, size_t bytes) {
  return std::count_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes), BeginsUtf8Char);
}

}  // namespace tdock::text
