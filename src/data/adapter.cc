#include "data/adapter.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/yaml_reader.h"
#include "data/adapter_fields.h"

namespace tdock::data {
namespace {

constexpr std::pair<absl::string_view, Adapter::Style> kStyles[] = {
    {"text", Adapter::Style::kText}, {"chat", Adapter::Style::kChat}, {"alpaca", Adapter::Style::kAlpaca}};

// What is wrong with a value, if anything is.
absl::string_view SetOfAdapter(absl::string_view key, const std::string& value, Adapter& adapter) {
  if (const AdapterField* field = FieldNamed(key)) {
    adapter.*field->column = value;
    return "";
  }
  if (key == "truth_after") {
    adapter.truth_after = value;
    return "";
  }
  if (key != "style") {
    return "unknown; there are style, prompt, input, chosen, rejected, conversation, label, truth, truth_after, source "
           "and text";
  }
  for (const auto& [name, style] : kStyles) {
    if (value != name) continue;
    adapter.style = style;
    return "";
  }
  return "text, chat or alpaca is expected";
}

// The samples of a phase, and the recipes that train on them.
absl::string_view SamplesOf(Phase phase) {
  switch (phase) {
    case Phase::kSft:
      return "samples with an answer to imitate (sft)";
    case Phase::kReward:
      return "pairs of a chosen and a rejected answer (rm, dpo)";
    case Phase::kPrompt:
      return "prompts to answer (ppo, grpo, dapo)";
    case Phase::kUnsupervised:
      return "plain texts";
  }
  return "";
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
      problems.push_back(
          absl::StrCat(EscapeUnprintable(file), ":", entry.line, ": ", EscapeForMessage(entry.key), ": ", what));
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
    if (const absl::string_view wrong = SetOfAdapter(key, entry.scalar.text, adapter); !wrong.empty()) problem(wrong);
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
      absl::StrJoin(adapters_, ", ", [](std::string* out, const Adapter& a) { *out += EscapeForMessage(a.name); }),
      ". To add one, name its columns in the file of data.adapters: \"", EscapeForMessage(name),
      ": {style: text, prompt: …, chosen: …, rejected: …}\"; or take \"custom\" and set data.columns.prompt and so "
      "on; or take \"auto\", which goes by the columns of the file"));
}

absl::StatusOr<std::vector<std::string>> ColumnsOf(const Adapter& adapter, Phase phase) {
  const FieldList fields(adapter, phase);
  std::vector<std::string> columns;
  for (size_t i = 0; i < fields.size(); ++i) {
    columns.push_back(adapter.*fields[i].column);
    if (columns.back().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the data set \"", EscapeForMessage(adapter.name),
                                                     "\" names no column for \"", fields[i].name, "\", which ",
                                                     SamplesOf(phase), " need; set ", KeyOfColumn(adapter, phase, i)));
    }
  }
  if (fields.kept() > 0) columns.insert(columns.end(), adapter.keep.begin(), adapter.keep.end());
  return columns;
}

std::string KeyOfColumn(const Adapter& adapter, Phase phase, size_t index) {
  const FieldList fields(adapter, phase);
  return index < fields.size() ? absl::StrCat("data.columns.", fields[index].name) : "data.keep";
}

std::string DescribeAdapter(const Adapter& adapter) {
  std::string description = "style ";
  for (const auto& [name, style] : kStyles) {
    if (style == adapter.style) absl::StrAppend(&description, name);
  }
  for (const AdapterField& field : kAdapterFields) {
    const std::string& column = adapter.*field.column;
    if (column.empty()) continue;
    absl::StrAppend(&description, ", ", field.name, ": ", EscapeForMessage(column));
    if (field.column != &Adapter::truth || adapter.truth_after.empty()) continue;
    absl::StrAppend(&description, " after \"", EscapeForMessage(adapter.truth_after), "\"");
  }
  return description;
}

}  // namespace tdock::data
