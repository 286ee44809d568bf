#include "inference/constraints.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "inference/reply_stream.h"

namespace tdock::inference {
namespace {

std::string Quote(const std::string& name) { return JsonText(nlohmann::ordered_json(name)); }

void SpellMistral(bool has_marks_of_arguments, GrammarSpec& spec) {
  if (!has_marks_of_arguments) {
    spec.before_calls = "[TOOL_CALLS][";
    spec.between_calls = ", ";
    spec.after_calls = "]";
    return;
  }
  spec.before_call = "[TOOL_CALLS]";
  for (CallRule& rule : spec.calls) rule.before = rule.name + "[ARGS]";
}

// V3 and R1 have fences around the arguments, V3.1 has none.
void SpellDeepSeek(bool has_fences, GrammarSpec& spec) {
  spec.before_calls = "<｜tool▁calls▁begin｜>";
  spec.before_call = absl::StrCat("<｜tool▁call▁begin｜>", has_fences ? "function<｜tool▁sep｜>" : "");
  spec.after_call = absl::StrCat(has_fences ? "\n```" : "", "<｜tool▁call▁end｜>");
  spec.between_calls = has_fences ? "\n" : "";
  spec.after_calls = "<｜tool▁calls▁end｜>";
  for (CallRule& rule : spec.calls) rule.before = rule.name + (has_fences ? "\n```json\n" : "<｜tool▁sep｜>");
}

void SpellGlm(GrammarSpec& spec) {
  spec.before_call = "<tool_call>";
  spec.after_call = "</tool_call>";
  spec.between_calls = "\n";
  spec.tags = ArgumentTags{"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"};
  for (CallRule& rule : spec.calls) rule.before = rule.name + "\n";
}

void SpellQwenCoder(GrammarSpec& spec) {
  spec.before_call = "<tool_call>\n";
  spec.after_call = "\n</tool_call>";
  spec.between_calls = "\n";
  spec.tags = ArgumentTags{"<parameter=", ">\n", "\n</parameter>\n"};
  for (CallRule& rule : spec.calls) {
    rule.before = absl::StrCat("<function=", rule.name, ">\n");
    rule.after = "</function>";
  }
}

}  // namespace

absl::StatusOr<GrammarSpec> SpellCalls(GrammarSpec spec, text::ReplyForm form, const text::ChatTemplate& chat_template,
                                       bool reasoning_open) {
  switch (form) {
    case text::ReplyForm::kHermes:
      spec.before_call = "<tool_call>\n";
      spec.after_call = "\n</tool_call>";
      spec.between_calls = "\n";
      break;
    case text::ReplyForm::kLlama3:
      spec.one_call = true;
      for (CallRule& rule : spec.calls) {
        rule.before = absl::StrCat("{\"name\": ", Quote(rule.name), ", \"parameters\": ");
        rule.after = "}";
      }
      break;
    case text::ReplyForm::kMistral:
      SpellMistral(chat_template.Spells("[ARGS]"), spec);
      break;
    case text::ReplyForm::kDeepSeek:
      if (chat_template.Spells("｜DSML｜")) break;
      SpellDeepSeek(chat_template.Spells("```json"), spec);
      break;
    case text::ReplyForm::kHarmony:
      spec.one_call = true;  // the token that ends it ends the answer
      for (CallRule& rule : spec.calls) {
        rule.before = absl::StrCat("<|channel|>commentary to=functions.", rule.name, " <|constrain|>json<|message|>");
      }
      break;
    case text::ReplyForm::kGlm:
      SpellGlm(spec);
      break;
    case text::ReplyForm::kQwenCoder:
      SpellQwenCoder(spec);
      break;
    case text::ReplyForm::kGemma:
    case text::ReplyForm::kPlain:
      break;
  }
  if (spec.before_call.empty() && spec.before_calls.empty() && spec.calls.front().before.empty()) {
    return absl::UnimplementedError(absl::StrCat("the model's replies are of the form ", text::NameOf(form),
                                                 ", in which this server cannot make it call a tool"));
  }
  if (reasoning_open) {
    spec.before_calls = absl::StrCat("\n", text::MarksOf(form).reasoning_end, "\n\n", spec.before_calls);
  }
  return spec;
}

std::variant<Constraints::Make, Problem> Constraints::For(const Ask& ask, std::span<const int32_t> prompt) {
  GrammarSpec spec = *ask.grammar;
  if (spec.kind == GrammarSpec::Kind::kCalls) {
    auto spelled =
        SpellCalls(std::move(spec), model_.reply_form, *model_.chat_template, EndsInReasoning(model_, prompt));
    if (!spelled.ok()) {
      return Problem{.message = absl::StrCat("'tool_choice' cannot be kept: ", spelled.status().message()),
                     .param = "tool_choice",
                     .code = "unsupported_value"};
    }
    spec = *std::move(spelled);
  }
  std::call_once(made_, [this] {
    grammars_ = std::make_unique<Grammars>(std::make_shared<const Vocabulary>(*model_.tokenizer, model_.end_tokens));
  });
  const auto masks = grammars_->For(spec);
  if (!masks.ok()) {
    return Problem{.message = absl::StrCat("'", ask.grammar_field, "' cannot be used: ", masks.status().message()),
                   .param = ask.grammar_field,
                   .code = "invalid_value"};
  }
  return Make([masks = *masks](int64_t) { return std::make_unique<GrammarConstraint>(masks); });
}

}  // namespace tdock::inference
