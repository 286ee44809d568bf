#include "data/sample.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/adapter_fields.h"
#include "data/value_text.h"
#include "text/turn_json.h"

namespace tdock::data {
namespace {

using text::Role;
using text::Turn;

absl::Status Holds(const Value& value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("it holds ", value.kind(), "; ", expected, " is expected"));
}

// The same status, an error with the name of its column.
absl::Status AtColumn(const absl::Status& status, absl::string_view column) {
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat("column '", EscapeForMessage(column), "'"));
}

absl::Status TextOrNothing(const Value& value) {
  return value.is_nothing() || value.text() != nullptr ? absl::OkStatus() : Holds(value, "text");
}

// A list for the template, or its JSON as text.
absl::StatusOr<std::string> ListOf(const Value& value) {
  if (value.text() != nullptr) return *value.text();
  if (value.list() != nullptr) return JsonOfValue(value);
  return Holds(value, "a list, or a list in JSON as text,");
}

}  // namespace

absl::StatusOr<std::vector<Turn>> TurnsOf(const Value& value) {
  if (value.list() == nullptr) return Holds(value, "a list of turns");
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::ordered_json messages, JsonTreeOfValue(value));
  return text::ReadTurns(messages);
}

namespace {

// In chat style text is one turn of this role.
absl::StatusOr<Sample::Part> PartOf(Adapter::Style style, Role role, Value value) {
  std::string* text = std::get_if<std::string>(&value);
  if (style != Adapter::Style::kChat) {
    if (text == nullptr) return Holds(value, "text");
    return Sample::Part(std::move(*text));
  }
  if (text != nullptr) return Sample::Part(std::vector<Turn>{{.role = role, .content = std::move(*text)}});
  if (value.list() == nullptr) return Holds(value, "text or a list of turns");
  TDOCK_ASSIGN_OR_RETURN(std::vector<Turn> turns, TurnsOf(value));
  if (role == Role::kAssistant && (turns.empty() || turns.back().role != role)) {
    return absl::InvalidArgumentError("its turns do not end with the assistant's");
  }
  return Sample::Part(std::move(turns));
}

bool SaysTheSame(const Turn& a, const Turn& b) {
  return a.role == b.role && a.content == b.content && a.has_content == b.has_content && a.fields == b.fields;
}

bool Begins(const std::vector<Turn>& turns, const std::vector<Turn>& with) {
  return turns.size() > with.size() && std::equal(with.begin(), with.end(), turns.begin(), SaysTheSame);
}

// Takes the prompt off an answer that is given as the whole dialogue.
absl::Status KeepAnswer(const Sample::Part& prompt, Sample::Part& answer) {
  const auto* asked = std::get_if<std::vector<Turn>>(&prompt);
  auto* turns = std::get_if<std::vector<Turn>>(&answer);
  if (asked == nullptr || turns == nullptr) return absl::OkStatus();
  if (!asked->empty() && Begins(*turns, *asked)) {
    turns->erase(turns->begin(), turns->begin() + static_cast<std::ptrdiff_t>(asked->size()));
  }
  if (turns->front().role == Role::kAssistant) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "its turns begin neither with the assistant's nor with all of the prompt, which stands in a column of its own");
}

// The turns that both dialogues begin with, and of each the rest.
absl::Status SplitPrompt(Sample& sample) {
  auto& chosen = std::get<std::vector<Turn>>(*sample.chosen);
  auto& rejected = std::get<std::vector<Turn>>(*sample.rejected);
  const size_t most = std::min(chosen.size(), rejected.size()) - 1;
  size_t same = 0;
  while (same < most && SaysTheSame(chosen[same], rejected[same])) ++same;
  if (same == 0 || chosen[same].role != Role::kAssistant || rejected[same].role != Role::kAssistant) {
    return absl::InvalidArgumentError(
        absl::StrCat("without a prompt, the dialogues must begin with the same turns, up to an assistant's; turn ",
                     same + 1, " is another"));
  }
  const auto begin = static_cast<std::ptrdiff_t>(same);
  sample.prompt = std::vector<Turn>(chosen.begin(), chosen.begin() + begin);
  chosen.erase(chosen.begin(), chosen.begin() + begin);
  rejected.erase(rejected.begin(), rejected.begin() + begin);
  return absl::OkStatus();
}

// Adds to the prompt what it is about. The texts are those of PROMPT_DICT in train.py of tatsu-lab/stanford_alpaca.
absl::Status AddInput(Adapter::Style style, absl::string_view input, Sample& sample) {
  if (!sample.prompt) return absl::OkStatus();
  if (auto* text = std::get_if<std::string>(&*sample.prompt)) {
    if (style != Adapter::Style::kAlpaca) {
      if (!input.empty()) absl::StrAppend(text, "\n", input);
      return absl::OkStatus();
    }
    const absl::string_view paired = input.empty() ? "" : ", paired with an input that provides further context";
    const std::string section = input.empty() ? "" : absl::StrCat("### Input:\n", input, "\n\n");
    *text = absl::StrCat("Below is an instruction that describes a task", paired,
                         ". Write a response that appropriately completes the request.\n\n### Instruction:\n", *text,
                         "\n\n", section, "### Response:");
    return absl::OkStatus();
  }
  auto& turns = std::get<std::vector<Turn>>(*sample.prompt);
  if (input.empty()) return absl::OkStatus();
  if (turns.empty() || turns.back().role != Role::kUser) {
    return absl::InvalidArgumentError("there is no user's turn at the end of the prompt to put it under");
  }
  absl::StrAppend(&turns.back().content, "\n", input);
  return absl::OkStatus();
}

absl::StatusOr<std::string> TruthOf(const Adapter& adapter, const Value& value) {
  TDOCK_ASSIGN_OR_RETURN(std::string truth, TextOfValue(value));
  if (adapter.truth_after.empty()) return truth;
  const size_t at = truth.rfind(adapter.truth_after);
  if (at == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("it does not hold \"", EscapeForMessage(adapter.truth_after),
                                                   "\", which the right answer follows"));
  }
  return std::string(absl::StripAsciiWhitespace(absl::string_view(truth).substr(at + adapter.truth_after.size())));
}

absl::StatusOr<double> LabelOf(const Value& value) {
  if (const bool* truth = std::get_if<bool>(&value)) return *truth ? 1.0 : 0.0;
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  double number = 0;
  if (const double* given = std::get_if<double>(&value)) {
    number = *given;
  } else if (value.text() == nullptr || !absl::SimpleAtod(*value.text(), &number)) {
    return Holds(value, "a number");
  }
  if (std::isfinite(number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("it holds ", number, "; a finite number is expected"));
}

absl::Status FillField(const Adapter& adapter, const AdapterField& field, Value value, Sample& sample) {
  if (field.column == &Adapter::conversation) {
    TDOCK_ASSIGN_OR_RETURN(sample.conversation, TurnsOf(value));
  } else if (field.column == &Adapter::tools) {
    TDOCK_ASSIGN_OR_RETURN(sample.context.tools, ListOf(value));
  } else if (field.column == &Adapter::documents) {
    TDOCK_ASSIGN_OR_RETURN(sample.context.documents, ListOf(value));
  } else if (field.column == &Adapter::label) {
    TDOCK_ASSIGN_OR_RETURN(sample.label, LabelOf(value));
  } else if (field.column == &Adapter::truth) {
    TDOCK_ASSIGN_OR_RETURN(sample.truth, TruthOf(adapter, value));
  } else if (field.column == &Adapter::source) {
    TDOCK_ASSIGN_OR_RETURN(sample.source, TextOfValue(value));
  } else if (field.column == &Adapter::text) {
    if (value.text() == nullptr) return Holds(value, "text");
    sample.text = std::move(std::get<std::string>(value));
  } else if (field.column == &Adapter::prompt) {
    TDOCK_ASSIGN_OR_RETURN(sample.prompt, PartOf(adapter.style, Role::kUser, std::move(value)));
  } else {
    auto& part = field.column == &Adapter::chosen ? sample.chosen : sample.rejected;
    if (adapter.prompt_is_in_answers() && value.list() == nullptr) {
      return Holds(value, "a list of turns, the prompt's among them,");
    }
    TDOCK_ASSIGN_OR_RETURN(part, PartOf(adapter.style, Role::kAssistant, std::move(value)));
  }
  return absl::OkStatus();
}

// What is only known once all fields of a sample are.
absl::Status CompleteSample(const Adapter& adapter, Phase phase, const Value& input, Sample& sample) {
  if (!adapter.input.empty() || adapter.style == Adapter::Style::kAlpaca) {
    absl::Status added = TextOrNothing(input);
    if (added.ok()) added = AddInput(adapter.style, input.text() == nullptr ? "" : *input.text(), sample);
    if (!added.ok()) return AtColumn(added, adapter.input);
  }
  if (adapter.prompt_is_in_answers()) {
    if (phase == Phase::kReward) {
      return sample.chosen && sample.rejected ? AtColumn(SplitPrompt(sample), adapter.rejected) : absl::OkStatus();
    }
    if (sample.chosen) sample.conversation = std::get<std::vector<Turn>>(*std::exchange(sample.chosen, std::nullopt));
  }
  for (const auto& [answer, column] :
       {std::pair(&sample.chosen, &adapter.chosen), {&sample.rejected, &adapter.rejected}}) {
    if (!sample.prompt || !*answer) continue;
    TDOCK_RETURN_IF_ERROR(AtColumn(KeepAnswer(*sample.prompt, **answer), *column));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Sample> MakeSample(const Adapter& adapter, Phase phase, Record record) {
  const FieldList fields(adapter, phase);
  TDOCK_CHECK(record.size() == fields.size() + fields.kept(), "a record has the cells that were asked for");
  Sample sample;
  Value input;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (record[i].is_nothing()) continue;
    if (fields[i].column == &Adapter::input) {
      input = std::move(record[i]);
      continue;
    }
    TDOCK_RETURN_IF_ERROR(
        AtColumn(FillField(adapter, fields[i], std::move(record[i]), sample), adapter.*fields[i].column));
  }
  TDOCK_RETURN_IF_ERROR(CompleteSample(adapter, phase, input, sample));
  for (size_t i = 0; i < fields.kept(); ++i) {
    absl::StatusOr<std::string> text = TextOfValue(record[fields.size() + i]);
    if (!text.ok()) return AtColumn(text.status(), adapter.keep[i]);
    sample.kept.push_back(*std::move(text));
  }
  return sample;
}

}  // namespace tdock::data
