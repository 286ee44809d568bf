#include "trainer/reward/rules.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/pattern.h"
#include "trainer/reward/exact_number.h"
#include "trainer/reward/math_answer.h"

namespace tdock::reward {
namespace {

float Score01(bool right) { return right ? 1.0F : 0.0F; }

// A blank truth is missing; it is nobody's answer.
bool IsBlank(absl::string_view truth) { return absl::StripAsciiWhitespace(truth).empty(); }

class ExactRule final : public Rule {
 public:
  explicit ExactRule(const ExactRuleConfig& config) : config_(config) {}

  std::optional<float> Score(const Answer& answer) const override {
    if (IsBlank(answer.truth)) return std::nullopt;
    if (config_.require_finished && !answer.finished) return 0.0F;
    if (!config_.strip) return Score01(answer.response == answer.truth);
    return Score01(absl::StripAsciiWhitespace(answer.response) == absl::StripAsciiWhitespace(answer.truth));
  }

 private:
  const ExactRuleConfig config_;
};

class NumberRule final : public Rule {
 public:
  explicit NumberRule(const NumberRuleConfig& config) : config_(config) {}

  std::optional<float> Score(const Answer& answer) const override {
    const std::optional<std::string> truth = FinalNumber(answer.truth, /*marked_only=*/false);
    if (!truth) return std::nullopt;
    return Score01(FinalNumber(answer.response, config_.strict) == truth);
  }

 private:
  const NumberRuleConfig config_;
};

class MathRule final : public Rule {
 public:
  explicit MathRule(const MathRuleConfig& config) : config_(config) {}

  std::optional<float> Score(const Answer& answer) const override {
    const std::string truth = LastBoxed(answer.truth).value_or(answer.truth);
    if (IsBlank(truth)) return std::nullopt;
    const std::optional<std::string> given = Given(answer.response);
    return Score01(given && SameMathAnswer(*given, truth));
  }

 private:
  std::optional<std::string> Given(const std::string& response) const {
    std::optional<std::string> given;
    if (config_.answer != MathRuleConfig::Place::kLine) given = LastBoxed(response);
    if (!given && config_.answer != MathRuleConfig::Place::kBoxed) given = LastAnswerLine(response);
    return given;
  }

  const MathRuleConfig config_;
};

class FixedPatternRule final : public Rule {
 public:
  explicit FixedPatternRule(text::Pattern pattern) : pattern_(std::move(pattern)) {}

  std::optional<float> Score(const Answer& answer) const override {
    const std::optional<bool> matches = pattern_.Matches(absl::StripAsciiWhitespace(answer.response));
    if (!matches) return std::nullopt;
    return Score01(*matches);
  }

 private:
  const text::Pattern pattern_;
};

// A pattern that contains the truth, and is compiled for each.
class TruthPatternRule final : public Rule {
 public:
  explicit TruthPatternRule(std::string pattern) : pattern_(std::move(pattern)) {}

  static absl::StatusOr<text::Pattern> Compiled(absl::string_view pattern, absl::string_view truth) {
    const std::string escaped = text::EscapeForPattern(truth);
    return text::Pattern::Compile(absl::StrReplaceAll(pattern, {{kTruthPlace, escaped}}),
                                  text::Pattern::Extent::kAnywhere);
  }

  std::optional<float> Score(const Answer& answer) const override {
    if (IsBlank(answer.truth)) return std::nullopt;
    const auto pattern = Compiled(pattern_, absl::StripAsciiWhitespace(answer.truth));
    if (!pattern.ok()) return std::nullopt;  // the truth is too long for one
    const std::optional<bool> matches = pattern->Matches(absl::StripAsciiWhitespace(answer.response));
    if (!matches) return std::nullopt;
    return Score01(*matches);
  }

 private:
  const std::string pattern_;
};

// The soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476, equation 13), over characters.
class LengthRule final : public Rule {
 public:
  explicit LengthRule(const LengthRuleConfig& config) : config_(config) {}

  std::optional<float> Score(const Answer& answer) const override {
    int64_t characters = 0;
    for (const char c : answer.response) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    if (characters <= config_.soft_limit) return 0.0F;
    if (characters >= config_.hard_limit) return -1.0F;
    return -static_cast<float>(characters - config_.soft_limit) /
           static_cast<float>(config_.hard_limit - config_.soft_limit);
  }

  std::pair<float, float> range() const override { return {-1.0F, 0.0F}; }

 private:
  const LengthRuleConfig config_;
};

}  // namespace

std::unique_ptr<const Rule> MakeExactRule(const ExactRuleConfig& config) { return std::make_unique<ExactRule>(config); }

std::unique_ptr<const Rule> MakeNumberRule(const NumberRuleConfig& config) {
  return std::make_unique<NumberRule>(config);
}

std::unique_ptr<const Rule> MakeMathRule(const MathRuleConfig& config) { return std::make_unique<MathRule>(config); }

std::unique_ptr<const Rule> MakeLengthRule(const LengthRuleConfig& config) {
  return std::make_unique<LengthRule>(config);
}

absl::StatusOr<std::unique_ptr<const Rule>> MakeRegexRule(const RegexRuleConfig& config) {
  TDOCK_ASSIGN_OR_RETURN(text::Pattern pattern, TruthPatternRule::Compiled(config.pattern, "1"));
  if (absl::StrContains(config.pattern, kTruthPlace)) return std::make_unique<TruthPatternRule>(config.pattern);
  return std::make_unique<FixedPatternRule>(std::move(pattern));
}

absl::StatusOr<std::unique_ptr<const Rule>> MakeFormatRule(const FormatRuleConfig& config) {
  TDOCK_ASSIGN_OR_RETURN(text::Pattern pattern, text::Pattern::Compile(config.pattern, text::Pattern::Extent::kWhole));
  return std::make_unique<FixedPatternRule>(std::move(pattern));
}

}  // namespace tdock::reward
