#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::text {
namespace {

// A second or two in the worst case. A search in honest text takes thousands of times less.
constexpr uint32_t kPatternMatchLimit = 10'000'000;
constexpr uint32_t kPatternHeapLimitKib = 64 * 1024;

struct FreeFound {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Pattern::Code {
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
};

absl::StatusOr<Pattern> Pattern::Compile(absl::string_view pattern, Extent extent) {
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern ", Quoted(pattern), " ", why));
  };
  if (pattern.size() > kMaxBytes) {
    return refused(absl::StrCat("has ", pattern.size(), " bytes; at most ", kMaxBytes, " are taken"));
  }
  if (FindInvalidUtf8(pattern)) return refused("is not UTF-8");
  // \C would match a part of a character.
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  // Given here and not for each match, where they would keep the compiled form from being used.
  if (extent == Extent::kWhole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  auto made = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE place = 0;
  made->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &place, nullptr);
  if (made->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    return refused(
        absl::StrCat("does not compile: at byte ", place, ", ", reinterpret_cast<const char*>(reason.data())));
  }
  made->context = pcre2_match_context_create(nullptr);
  if (made->context == nullptr) return absl::ResourceExhaustedError("no memory for a pattern");
  pcre2_set_match_limit(made->context, kPatternMatchLimit);
  pcre2_set_heap_limit(made->context, kPatternHeapLimitKib);
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);
  return Pattern(std::move(made));
}

std::optional<bool> Pattern::Matches(absl::string_view text) const {
  std::string repaired;
  if (FindInvalidUtf8(text)) text = repaired = ReplaceInvalidUtf8(text);
  const std::unique_ptr<pcre2_match_data, FreeFound> found(pcre2_match_data_create(1, nullptr));
  if (found == nullptr) return std::nullopt;
  const auto match = [&](uint32_t options) {
    // An empty view may have no address, which PCRE2 refuses.
    const char* const begin = text.empty() ? "" : text.data();
    return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(begin), text.size(), 0, options | PCRE2_NO_UTF_CHECK,
                       found.get(), code_->context);
  };
  int result = match(0);
  // The compiled form has a small stack; the interpreter takes its memory from the heap.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) return std::nullopt;
  return true;
}

std::string EscapeForPattern(absl::string_view text) {
  std::string escaped;
  for (const char c : ReplaceInvalidUtf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) {
      escaped += "\\x{0}";
      continue;
    }
    if (byte < 0x80 && !absl::ascii_isalnum(byte)) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace tdock::text
