#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"

namespace tdock::text {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
// Of backtracking, for one match. A pattern that needs more on honest text would be unusable anyway.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;

std::string Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer;
  const int size = pcre2_get_error_message(code, buffer.data(), buffer.size());
  return size < 0 ? absl::StrCat("error ", code)
                  : std::string(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(size));
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
      } else if (absl::StartsWith(rest_, "(*") || absl::StartsWith(rest_, "}+")) {
        return Unsupported(rest_.substr(0, 2));
      } else {
        in_class_ = c == '[';
        class_begun_ = in_class_;
        Take(in_class_ && absl::StartsWith(rest_, "[^") ? 2 : 1);
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

  absl::Status InClass(char c) {
    // Nested classes, intersections and POSIX names mean different things, or nothing, to PCRE2.
    if (c == '[' || absl::StartsWith(rest_, "&&")) return Unsupported(rest_.substr(0, 2));
    if (c == ']' && class_begun_) return Unsupported("[]");
    in_class_ = c != ']';
    class_begun_ = false;
    Take(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    for (const char* known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!absl::StartsWith(rest_, known)) continue;
      Take(std::char_traits<char>::length(known));
      return absl::OkStatus();
    }
    return Unsupported(rest_.substr(0, 4));
  }

  absl::Status Escape() {
    class_begun_ = false;
    if (rest_.size() < 2) return Unsupported("\\");
    const char c = rest_[1];
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
    absl::string_view name = rest_.substr(3, close - 3);
    const absl::string_view shown = rest_.substr(0, close + 1);
    bool negative = rest_[1] == 'P';
    if (absl::ConsumePrefix(&name, "^")) negative = !negative;
    for (const char letter : name) {
      if (!absl::ascii_isalpha(static_cast<unsigned char>(letter))) return Unsupported(shown);
    }
    if (name.empty()) return Unsupported(shown);
    // One or two letters are a general category; more, a script. PCRE2 reads a bare name as the wider
    // Script_Extensions.
    absl::StrAppend(&out_, negative ? "\\P{" : "\\p{", name.size() > 2 ? "sc:" : "", name, "}");
    rest_.remove_prefix(close + 1);
    return absl::OkStatus();
  }

  absl::string_view rest_;
  const absl::string_view whole_;
  std::string out_;
  bool in_class_ = false;
  bool class_begun_ = false;  // nothing has come in it yet
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

absl::StatusOr<std::vector<TextRange>> Regex::FindAll(absl::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) return absl::ResourceExhaustedError("no memory for a regular expression");
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(data.get());
  std::vector<TextRange> matches;
  for (size_t at = 0; at <= text.size();) {
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
