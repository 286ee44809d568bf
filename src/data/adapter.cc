#include "data/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/yaml_reader.h"

namespace tdock::data {
namespace {

using text::Role;
using text::Turn;

struct Field {
  absl::string_view name;
  std::string Adapter::*column;
};
constexpr std::array kFields = {Field{"prompt", &Adapter::prompt},     Field{"chosen", &Adapter::chosen},
                                Field{"rejected", &Adapter::rejected}, Field{"conversation", &Adapter::conversation},
                                Field{"label", &Adapter::label},       Field{"text", &Adapter::text}};

const Field* FieldNamed(absl::string_view name) {
  const auto found = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == name; });
  return found == kFields.end() ? nullptr : &*found;
}

// The fields that a phase reads of this adapter. A conversation says it all by itself.
class FieldList {
 public:
  FieldList(const Adapter& adapter, Phase phase) {
    const bool has_conversation = !adapter.conversation.empty();
    switch (phase) {
      case Phase::kSft:
        if (has_conversation) Add("conversation");
        if (!has_conversation) Add("prompt"), Add("chosen");
        break;
      case Phase::kReward:
        Add("prompt"), Add("chosen"), Add("rejected");
        break;
      case Phase::kPrompt:
        Add(adapter.prompt.empty() && has_conversation ? "conversation" : "prompt");
        break;
      case Phase::kUnsupervised:
        Add("text");
        break;
    }
    if (!adapter.label.empty()) Add("label");
  }

  size_t size() const { return size_; }
  const Field& operator[](size_t i) const { return *fields_[i]; }

 private:
  void Add(absl::string_view name) { fields_[size_++] = FieldNamed(name); }

  std::array<const Field*, kFields.size()> fields_;
  size_t size_ = 0;
};

absl::Status Holds(const Value& value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("it holds ", value.kind(), "; ", expected, " is expected"));
}

absl::StatusOr<Role> RoleNamed(const std::string& name) {
  static const auto* const roles = new std::map<std::string, Role>{{"system", Role::kSystem},
                                                                   {"user", Role::kUser},
                                                                   {"human", Role::kUser},
                                                                   {"assistant", Role::kAssistant},
                                                                   {"gpt", Role::kAssistant}};
  const auto found = roles->find(name);
  if (found != roles->end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("the role \"", EscapeForMessage(name), "\" is none of system, user, human, assistant and gpt"));
}

bool IsEmpty(const Value& value) {
  return value.is_nothing() || (value.text() != nullptr && value.text()->empty()) ||
         (value.list() != nullptr && value.list()->empty()) || (value.object() != nullptr && value.object()->empty());
}

// A field that would be passed over might be one that changes what the turn says, as tool_calls does: it is refused.
absl::StatusOr<Turn> TurnOf(const Value& value) {
  if (value.object() == nullptr) return Holds(value, "an object with \"role\" and \"content\"");
  const Value* role = nullptr;
  const Value* content = nullptr;
  Turn turn;
  for (const auto& [name, cell] : *value.object()) {
    const bool is_role = name == "role" || name == "from";
    if (is_role || name == "content" || name == "value") {
      const Value*& known = is_role ? role : content;
      if (known != nullptr && !known->is_nothing() && !cell.is_nothing()) {
        return absl::InvalidArgumentError(is_role ? "it has both \"role\" and \"from\""
                                                  : "it has both \"content\" and \"value\"");
      }
      if (known == nullptr || known->is_nothing()) known = &cell;
    } else if (name != "train") {
      if (IsEmpty(cell)) continue;
      return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForMessage(name), "\" is ", cell.kind(),
                                                     "; only role, content and train are supported"));
    } else if (const bool* train = std::get_if<bool>(&cell)) {
      turn.train = *train;
    } else if (!cell.is_nothing()) {
      return absl::InvalidArgumentError(absl::StrCat("\"train\" is ", cell.kind(), "; true or false is expected"));
    }
  }
  for (const auto& [cell, what] :
       {std::pair(role, "\"role\" (or \"from\")"), {content, "\"content\" (or \"value\")"}}) {
    if (cell != nullptr && cell->text() != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is ", cell == nullptr ? "missing" : cell->kind(), "; text is expected"));
  }
  TDOCK_ASSIGN_OR_RETURN(turn.role, RoleNamed(*role->text()));
  turn.content = *content->text();
  return turn;
}

absl::StatusOr<std::vector<Turn>> TurnsOf(const Value& value) {
  if (value.list() == nullptr) return Holds(value, "a list of turns");
  std::vector<Turn> turns;
  for (const Value& item : *value.list()) {
    absl::StatusOr<Turn> turn = TurnOf(item);
    if (!turn.ok()) return Annotate(turn.status(), absl::StrCat("turn ", turns.size() + 1));
    turns.push_back(*std::move(turn));
  }
  return turns;
}

// In chat style text is one turn of this role.
absl::StatusOr<Sample::Part> PartOf(Adapter::Style style, Role role, Value value) {
  std::string* text = std::get_if<std::string>(&value);
  if (style == Adapter::Style::kText) {
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

bool Begins(const std::vector<Turn>& turns, const std::vector<Turn>& with) {
  return turns.size() > with.size() &&
         std::equal(with.begin(), with.end(), turns.begin(),
                    [](const Turn& a, const Turn& b) { return a.role == b.role && a.content == b.content; });
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

absl::Status FillField(const Adapter& adapter, const Field& field, Value value, Sample& sample) {
  if (field.column == &Adapter::conversation) {
    TDOCK_ASSIGN_OR_RETURN(sample.conversation, TurnsOf(value));
  } else if (field.column == &Adapter::label) {
    TDOCK_ASSIGN_OR_RETURN(sample.label, LabelOf(value));
  } else if (field.column == &Adapter::text) {
    if (value.text() == nullptr) return Holds(value, "text");
    sample.text = std::move(std::get<std::string>(value));
  } else if (field.column == &Adapter::prompt) {
    TDOCK_ASSIGN_OR_RETURN(sample.prompt, PartOf(adapter.style, Role::kUser, std::move(value)));
  } else {
    auto& part = field.column == &Adapter::chosen ? sample.chosen : sample.rejected;
    TDOCK_ASSIGN_OR_RETURN(part, PartOf(adapter.style, Role::kAssistant, std::move(value)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kSft:
      return "sft";
    case Phase::kReward:
      return "reward";
    case Phase::kPrompt:
      return "prompt";
    case Phase::kUnsupervised:
      return "unsupervised";
  }
  return "";
}

Adapters::Adapters() {
  for (const char* name : {"Dahoas/full-hh-rlhf", "Dahoas/rm-static", "custom"}) {
    Set({.name = name, .prompt = "prompt", .chosen = "chosen", .rejected = "rejected"});
  }
  Set({.name = "chat",
       .style = Adapter::Style::kChat,
       .prompt = "prompt",
       .chosen = "chosen",
       .rejected = "rejected",
       .conversation = "messages"});
  Set({.name = "text", .text = "text"});
}

void Adapters::Set(Adapter adapter) {
  const auto place = std::lower_bound(adapters_.begin(), adapters_.end(), adapter.name,
                                      [](const Adapter& a, const std::string& name) { return a.name < name; });
  if (place != adapters_.end() && place->name == adapter.name) {
    *place = std::move(adapter);
  } else {
    adapters_.insert(place, std::move(adapter));
  }
}

absl::Status Adapters::AddYaml(absl::string_view yaml, absl::string_view file) {
  absl::StatusOr<config::YamlKeys> read = config::ReadYaml(yaml, file, config::Limits());
  if (!read.ok()) return read.status();
  std::vector<std::string> problems = read->duplicates;
  std::map<std::string, Adapter> made;
  for (const config::YamlEntry& entry : read->entries) {
    const auto problem = [&](absl::string_view what) {
      problems.push_back(absl::StrCat(file, ":", entry.line, ": ", EscapeForMessage(entry.key), ": ", what));
    };
    // A name may hold dots; what is in it may not.
    const size_t dot = entry.key.rfind('.');
    if (entry.kind == config::YamlEntry::Kind::kSection) continue;
    if (dot == std::string::npos || entry.kind != config::YamlEntry::Kind::kScalar) {
      problem("a name with columns under it is expected, such as \"my_data: {prompt: question}\"");
      continue;
    }
    const std::string name = entry.key.substr(0, dot);
    const absl::string_view key = absl::string_view(entry.key).substr(dot + 1);
    Adapter& adapter = made.try_emplace(name, Adapter{.name = name}).first->second;
    if (const Field* field = FieldNamed(key)) {
      adapter.*field->column = entry.scalar.text;
    } else if (key != "style") {
      problem("unknown; there are style, prompt, chosen, rejected, conversation, label and text");
    } else if (entry.scalar.text != "text" && entry.scalar.text != "chat") {
      problem("text or chat is expected");
    } else {
      adapter.style = entry.scalar.text == "chat" ? Adapter::Style::kChat : Adapter::Style::kText;
    }
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  for (auto& [name, adapter] : made) Set(std::move(adapter));
  return absl::OkStatus();
}

absl::StatusOr<Adapter> Adapters::Find(absl::string_view name) const {
  for (const Adapter& adapter : adapters_) {
    if (adapter.name == name) return adapter;
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no data set \"", EscapeForMessage(name), "\"; there are ",
      absl::StrJoin(adapters_, ", ", [](std::string* out, const Adapter& a) { absl::StrAppend(out, a.name); }),
      ". To add one, name its columns in the file of data.adapters: \"", EscapeForMessage(name),
      ": {style: text, prompt: …, chosen: …, rejected: …}\"; or take \"custom\" and set data.columns.prompt and so "
      "on"));
}

absl::StatusOr<std::vector<std::string>> ColumnsOf(const Adapter& adapter, Phase phase) {
  const FieldList fields(adapter, phase);
  std::vector<std::string> columns;
  for (size_t i = 0; i < fields.size(); ++i) {
    columns.push_back(adapter.*fields[i].column);
    if (columns.back().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the data set \"", EscapeForMessage(adapter.name),
                                                     "\" names no column for \"", fields[i].name,
                                                     "\", which the phase ", PhaseName(phase), " needs"));
    }
  }
  return columns;
}

absl::StatusOr<Sample> MakeSample(const Adapter& adapter, Phase phase, Record record) {
  const FieldList fields(adapter, phase);
  TDOCK_CHECK(record.size() == fields.size(), "a record has the cells that were asked for");
  Sample sample;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (record[i].is_nothing()) continue;
    const absl::Status status = FillField(adapter, fields[i], std::move(record[i]), sample);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("column '", EscapeForMessage(adapter.*fields[i].column), "'"));
    }
  }
  for (const auto& [answer, column] :
       {std::pair(&sample.chosen, &adapter.chosen), {&sample.rejected, &adapter.rejected}}) {
    if (!sample.prompt || !*answer) continue;
    if (const absl::Status status = KeepAnswer(*sample.prompt, **answer); !status.ok()) {
      return Annotate(status, absl::StrCat("column '", EscapeForMessage(*column), "'"));
    }
  }
  return sample;
}

}  // namespace tdock::data
