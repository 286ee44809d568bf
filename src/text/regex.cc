#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::text {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
// Of backtracking, for one match. A pattern that needs more on honest text would be unusable anyway.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kWorkOfMatch = 4096;

std::string Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer;
  const int size = pcre2_get_error_message(code, buffer.data(), buffer.size());
  return size < 0 ? absl::StrCat("error ", code)
                  : std::string(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(size));
}

// Oniguruma's long names of general categories and of its POSIX brackets, without case, '_', '-' and spaces, that mean
// the same in PCRE2 by another name.
constexpr std::pair<absl::string_view, absl::string_view> kProperties[] = {
    {"any", "Any"},
    {"letter", "L"},
    {"casedletter", "LC"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"cntrl", "Cc"},
    {"digit", "Nd"},
    {"space", "White_Space"},
    {"whitespace", "White_Space"},
};

// Whether a character, without regard to case, may be several others, or one of several that are another: "ß" and "ss".
// PCRE2 knows no such folding. Some harmless characters are taken with the rest of their block.
bool FoldsToSeveral(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0xDF, 0xDF},   {0x130, 0x130}, {0x149, 0x149}, {0x17F, 0x17F},   {0x1F0, 0x1F0},   {0x2BC, 0x2BC},
      {0x2BE, 0x2BE}, {0x300, 0x3FF}, {0x531, 0x587}, {0x1E96, 0x1E9E}, {0x1F00, 0x1FFF}, {0xFB00, 0xFB17}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [&](const auto& range) { return range.first <= code && code <= range.second; });
}

// Two letters that a ligature stands for, or that stand for another letter.
bool FoldTogether(char first, char second) {
  const char pair[] = {first, second};
  for (const char* known : {"ss", "st", "ff", "fi", "fl"}) {
    if (absl::EqualsIgnoreCase(absl::string_view(pair, 2), known)) return true;
  }
  return false;
}

// Goes through a pattern, and copies what both languages mean the same by.
class Translator {
 public:
  explicit Translator(absl::string_view pattern) : rest_(pattern), whole_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (c == '\\') {
        TDOCK_RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        TDOCK_RETURN_IF_ERROR(InClass(c));
      } else if (absl::StartsWith(rest_, "(?")) {
        TDOCK_RETURN_IF_ERROR(Group());
      } else if (absl::StartsWith(rest_, "(*")) {
        return Unsupported(rest_.substr(0, 2));
      } else if (absl::StrContains("*+?{", c)) {
        TDOCK_RETURN_IF_ERROR(Quantifier());
      } else if (c == '[') {
        in_class_ = class_begun_ = true;
        folded_ = 0;
        Take(absl::StartsWith(rest_, "[^") ? 2 : 1);
      } else {
        TDOCK_RETURN_IF_ERROR(Plain());
      }
    }
    return out_;
  }

 private:
  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("\"", EscapeForMessage(what), "\" in the pattern \"",
                                                 EscapeForMessage(whole_), "\" is not supported"));
  }
  void Take(size_t bytes) {
    out_.append(rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }
  bool ignores_case() const { return !groups_.empty() && groups_.back(); }

  // A character that stands for itself, or one of ( ) | . ^ $.
  absl::Status Plain() {
    const Utf8Char next = *FirstUtf8Char(rest_);
    const char c = rest_[0];
    if (c == '(') groups_.push_back(ignores_case());
    if (ignores_case()) {
      if (FoldsToSeveral(next.code)) return Unsupported(absl::StrCat("(?i:…", rest_.substr(0, next.bytes)));
      // A group alone does not keep letters apart.
      if (absl::ascii_isalpha(static_cast<unsigned char>(c))) {
        if (folded_ != 0 && FoldTogether(folded_, c))
          return Unsupported(absl::StrCat("(?i:…", std::string{folded_, c}));
        folded_ = c;
      } else if (c != '(' && c != ')') {
        folded_ = 0;
      }
    }
    if (c == ')' && !groups_.empty()) groups_.pop_back();
    if (!ignores_case()) folded_ = 0;
    Take(next.bytes);
    return absl::OkStatus();
  }

  absl::Status Quantifier() {
    bool exact = false;
    if (rest_[0] == '{') {
      const size_t close = rest_.find('}');
      const absl::string_view bounds = rest_.substr(1, close == absl::string_view::npos ? close : close - 1);
      const size_t comma = bounds.find(',');
      const absl::string_view least = bounds.substr(0, comma);
      const absl::string_view most = comma == absl::string_view::npos ? least : bounds.substr(comma + 1);
      const auto is_number = [](absl::string_view text) {
        return std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
      };
      if (close == absl::string_view::npos || !is_number(least) || !is_number(most) ||
          (least.empty() && most.empty())) {
        // Later versions of PCRE2 allow for blanks in it.
        absl::StrAppend(&out_, "\\{");
        rest_.remove_prefix(1);
        folded_ = 0;
        return absl::OkStatus();
      }
      exact = comma == absl::string_view::npos;
      int low = 0, high = 0;
      if (!least.empty() && !most.empty() && absl::SimpleAtoi(least, &low) && absl::SimpleAtoi(most, &high) &&
          low > high) {
        return Unsupported(rest_.substr(0, close + 1));  // possessive in Oniguruma
      }
      absl::StrAppend(&out_, "{", least.empty() ? "0" : least, exact ? "" : ",", exact ? "" : most, "}");
      rest_.remove_prefix(close + 1);
      if (absl::StartsWith(rest_, "+")) return Unsupported("}+");
    } else {
      Take(1);
      if (absl::StartsWith(rest_, "+")) Take(1);
    }
    // "{2}?" makes two optional there, and is lazy here.
    if (exact && absl::StartsWith(rest_, "?")) return Unsupported("}?");
    if (absl::StartsWith(rest_, "?")) Take(1);
    if (!rest_.empty() && absl::StrContains("*+?", rest_[0])) {
      return Unsupported(absl::StrCat(out_.substr(out_.size() - 1), rest_.substr(0, 1)));
    }
    return absl::OkStatus();
  }

  absl::Status InClass(char c) {
    // Nested classes, intersections and POSIX names mean different things, or nothing, to PCRE2.
    if (c == '[' || absl::StartsWith(rest_, "&&")) return Unsupported(rest_.substr(0, 2));
    if (c == ']' && class_begun_) return Unsupported("[]");
    in_class_ = c != ']';
    class_begun_ = false;
    const size_t bytes = FirstUtf8Char(rest_)->bytes;
    if (ignores_case()) {
      const bool wide_range = c == '-' && rest_.size() > 1 && static_cast<unsigned char>(rest_[1]) >= 0x80;
      if (wide_range || FoldsToSeveral(FirstUtf8Char(rest_)->code)) {
        return Unsupported(absl::StrCat("(?i:…[…", rest_.substr(0, wide_range ? 1 : bytes)));
      }
    }
    Take(bytes);
    return absl::OkStatus();
  }

  absl::Status Group() {
    for (const absl::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!absl::StartsWith(rest_, known)) continue;
      groups_.push_back(ignores_case() || known == "(?i:");
      Take(known.size());
      return absl::OkStatus();
    }
    return Unsupported(rest_.substr(0, 4));
  }

  absl::Status Escape() {
    class_begun_ = false;
    folded_ = 0;
    if (rest_.size() < 2) return Unsupported("\\");
    const char c = rest_[1];
    // There, a class without regard to case also has all that its letters fold to.
    if (in_class_ && ignores_case() && absl::StrContains("pPSD", c)) {
      return Unsupported(absl::StrCat("(?i:…[…", rest_.substr(0, 2)));
    }
    if (c == 'p' || c == 'P') return Property();
    if (c == 's' || c == 'S') {
      // PCRE2's \s also takes U+180E, which is no white space.
      absl::StrAppend(&out_, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
      rest_.remove_prefix(2);
      return absl::OkStatus();
    }
    if (absl::StrContains("dDrntf", c) || absl::ascii_ispunct(static_cast<unsigned char>(c)) || c == ' ') {
      Take(2);
      return absl::OkStatus();
    }
    return Unsupported(rest_.substr(0, 2));
  }

  absl::Status Property() {
    const size_t close = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || close == absl::string_view::npos) return Unsupported(rest_.substr(0, 3));
    absl::string_view given = rest_.substr(3, close - 3);
    const absl::string_view shown = rest_.substr(0, close + 1);
    bool negative = rest_[1] == 'P';
    if (absl::ConsumePrefix(&given, "^")) negative = !negative;
    std::string name, lower;
    for (const char letter : given) {
      if (absl::StrContains("_- ", letter)) continue;
      if (!absl::ascii_isalpha(static_cast<unsigned char>(letter))) return Unsupported(shown);
      name.push_back(letter);
      lower.push_back(absl::ascii_tolower(static_cast<unsigned char>(letter)));
    }
    const auto known =
        std::find_if(std::begin(kProperties), std::end(kProperties), [&](const auto& p) { return p.first == lower; });
    // One or two letters are a general category; more, a script. PCRE2 reads a bare name as the wider
    // Script_Extensions.
    std::string translated = known != std::end(kProperties) ? std::string(known->second)
                             : name.size() > 2              ? absl::StrCat("sc:", name)
                                                            : name;
    // PCRE2 does not look at the case here, Oniguruma does.
    if (ignores_case()) {
      for (const char* cased : {"Lu", "Ll", "Lt"}) {
        if (absl::EqualsIgnoreCase(translated, cased)) return Unsupported(absl::StrCat("(?i:…", shown));
      }
    }
    translated = absl::StrCat(negative ? "\\P{" : "\\p{", translated, "}");
    if (name.empty() || !Compiles(translated)) return Unsupported(shown);
    out_ += translated;
    rest_.remove_prefix(close + 1);
    return absl::OkStatus();
  }

  static bool Compiles(absl::string_view pattern) {
    int error = 0;
    PCRE2_SIZE place = 0;
    pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                           PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
    pcre2_code_free(code);
    return code != nullptr;
  }

  absl::string_view rest_;
  const absl::string_view whole_;
  std::string out_;
  bool in_class_ = false;
  bool class_begun_ = false;  // nothing has come in it yet
  std::vector<bool> groups_;  // those that are open: whether case is ignored in them
  char folded_ = 0;           // the letter before, where case is ignored
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Regex::Code {
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  std::string shown;
};

absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern has ", pattern.size(), " bytes; at most ", kMaxPatternBytes, " are taken"));
  }
  if (FindInvalidUtf8(pattern)) return absl::InvalidArgumentError("a pattern is not UTF-8");
  return Translator(pattern).Run();
}

absl::StatusOr<Regex> Regex::Make(const std::string& translated, uint32_t options, absl::string_view shown) {
  auto made = std::make_shared<Code>();
  made->shown = EscapeForMessage(shown);
  int error = 0;
  PCRE2_SIZE place = 0;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options | PCRE2_UTF,
                             &error, &place, nullptr);
  if (made->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern \"", made->shown, "\" is damaged: ", Message(error)));
  }
  made->context = pcre2_match_context_create(nullptr);
  if (made->context == nullptr) return absl::ResourceExhaustedError("no memory for a regular expression");
  pcre2_set_match_limit(made->context, kMatchLimit);
  pcre2_set_heap_limit(made->context, kHeapLimitKib);
  // Where the processor has no compiler, the interpreter does the same, slower.
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(made));
}

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  TDOCK_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  // ^ and $ belong to lines in Ruby.
  return Make(translated, PCRE2_UCP | PCRE2_MULTILINE, pattern);
}

absl::StatusOr<Regex> Regex::Literal(absl::string_view text) { return Make(std::string(text), PCRE2_LITERAL, text); }

absl::StatusOr<std::vector<TextRange>> Regex::FindAll(absl::string_view text, EncodeBudget& budget,
                                                      size_t max_matches) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a regular expression");
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(data.get());
  std::vector<TextRange> matches;
  size_t wide = 0;  // that are not empty
  for (size_t at = 0; at <= text.size() && wide <= max_matches;) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         options | PCRE2_NO_UTF_CHECK, data.get(), code_->context);
    };
    int result = match(0);
    // The compiled form has a small stack; the interpreter takes its memory from the heap.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the pattern \"", code_->shown, "\" cannot be matched from byte ",
                                                     at, " of a piece on: ", Message(result)));
    }
    const TextRange range{found[0], found[1]};
    // A match may have taken far longer than its length tells.
    TDOCK_RETURN_IF_ERROR(budget.Spend(kWorkOfMatch + std::max(range.end, at) - at));
    if (range.begin < range.end) ++wide;
    const bool behind_another = range.begin == range.end && !matches.empty() && matches.back().end == range.begin;
    if (!behind_another && range.begin <= range.end) matches.push_back(range);
    at = range.end;
    if (range.end <= range.begin) {
      if (at >= text.size()) break;
      at += FirstUtf8Char(text.substr(at))->bytes;
    }
  }
  return matches;
}

}  // namespace tdock::text
