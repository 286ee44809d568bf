// Sources of the forms: verl's docs/preparation/prepare_data.rst, TRL's docs/source/dataset_formats.md, LLaMA-Factory's
// data/README.md (ShareGPT), stanford_alpaca's README.md, and the data set openai/gsm8k.
#include "data/known_forms.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/adapter_fields.h"
#include "data/column_path.h"

namespace tdock::data {
namespace {

constexpr int64_t kLookedAt = 100;  // records
constexpr size_t kMostShown = 40;   // columns in a message
constexpr char kGsm8kMark[] = "####";

// The first records of a file.
class FirstRecords {
 public:
  explicit FirstRecords(const RecordFile& file) : file_(file), columns_(file.columns().begin(), file.columns().end()) {}

  bool Has(absl::string_view column) const { return columns_.contains(column); }

  // The first of these that is a column; empty: none.
  std::string FirstOf(std::initializer_list<const char*> columns) const {
    for (const char* column : columns) {
      if (Has(column)) return column;
    }
    return "";
  }

  // The first cell of a column, or of a path, that is not empty; nothing where there is none. Records that cannot be
  // read are passed over.
  Value FirstCell(const std::string& name) const {
    if (name.empty()) return {};
    const ColumnPath path = FindColumn(columns_, name);
    if (!Has(path.column)) return {};
    std::vector<int64_t> indexes(static_cast<size_t>(std::min(file_.size(), kLookedAt)));
    std::iota(indexes.begin(), indexes.end(), int64_t{0});
    for (absl::StatusOr<Record>& record : file_.Read(indexes, {&path.column, 1})) {
      if (!record.ok()) continue;
      absl::StatusOr<Value> cell = CellInside(std::move((*record)[0]), path.inside);
      if (cell.ok() && !cell->is_empty()) return *std::move(cell);
    }
    return {};
  }

 private:
  const RecordFile& file_;
  const ColumnSet columns_;
};

// Fills what the adapter leaves open.
void Fill(std::string& column, const std::string& found) {
  if (column.empty()) column = found;
}

// A question with a worked answer, whose result follows "####" in GSM8K.
void FindQuestion(const FirstRecords& records, Adapter& adapter) {
  adapter.prompt = "question";
  adapter.style = Adapter::Style::kChat;
  Fill(adapter.chosen, "answer");
  adapter.name = "question_answer";
  if (!adapter.truth.empty()) return;
  adapter.truth = "answer";
  const Value answer = records.FirstCell("answer");
  if (answer.text() == nullptr || !absl::StrContains(*answer.text(), kGsm8kMark)) return;
  adapter.name = "openai/gsm8k";
  if (adapter.truth_after.empty()) adapter.truth_after = kGsm8kMark;
}

void FindAnswers(const FirstRecords& records, Adapter& adapter) {
  if (records.Has("chosen") && records.Has("rejected")) {
    if (adapter.name.empty()) adapter.name = "preference";
    Fill(adapter.chosen, "chosen");
    Fill(adapter.rejected, "rejected");
    return;
  }
  const std::string answer = records.FirstOf({"completion", "answer", "truth", "response"});
  if (adapter.prompt.empty() || answer.empty()) return;
  if (adapter.name.empty()) adapter.name = absl::StrCat("prompt_", answer);
  Fill(adapter.chosen, answer);
  // Turns are no text to compare with.
  if (records.FirstCell(answer).list() == nullptr) Fill(adapter.truth, answer);
}

Adapter FindFields(const FirstRecords& records, const Adapter& given) {
  Adapter adapter = given;
  adapter.name = "";
  if (records.Has("messages") || records.Has("conversations")) {
    const std::string turns = records.FirstOf({"messages", "conversations"});
    Fill(adapter.conversation, turns);
    adapter.name = turns == "messages" ? "messages" : "sharegpt";
  }
  if (records.Has("prompt")) {
    if (records.FirstCell("reward_model").object() != nullptr) {
      adapter.name = "verl";
      constexpr char kTruth[] = "reward_model.ground_truth";
      if (!records.FirstCell(kTruth).is_nothing()) Fill(adapter.truth, kTruth);
    }
    Fill(adapter.prompt, "prompt");
  } else if (records.Has("instruction") && records.Has("output") && adapter.prompt.empty()) {
    adapter.name = "alpaca";
    adapter.style = Adapter::Style::kAlpaca;
    adapter.prompt = "instruction";
    Fill(adapter.input, records.FirstOf({"input"}));
    Fill(adapter.chosen, "output");
    Fill(adapter.truth, "output");
  } else if (records.Has("question") && records.Has("answer") && adapter.prompt.empty()) {
    FindQuestion(records, adapter);
  }
  FindAnswers(records, adapter);
  Fill(adapter.source, records.FirstOf({"data_source"}));
  Fill(adapter.text, records.FirstOf({"text"}));
  if (!adapter.name.empty()) return adapter;
  adapter.name = !adapter.prompt.empty() ? "prompt" : !adapter.text.empty() ? "text" : "custom";
  return adapter;
}

// Turns go through a template, and so do the texts beside them.
void FindStyle(const FirstRecords& records, Adapter& adapter) {
  if (!adapter.conversation.empty()) adapter.style = Adapter::Style::kChat;
  for (const std::string* column : {&adapter.prompt, &adapter.chosen, &adapter.rejected}) {
    if (records.FirstCell(*column).list() != nullptr) adapter.style = Adapter::Style::kChat;
  }
  if (adapter.style != Adapter::Style::kChat) return;
  Fill(adapter.tools, records.FirstOf({"tools"}));
  Fill(adapter.documents, records.FirstOf({"documents"}));
}

absl::Status UnknownForm(const RecordFile& file) {
  std::vector<std::string> names;
  for (const std::string& column : file.columns()) {
    if (names.size() < kMostShown) names.push_back(EscapeForMessage(column));
  }
  const std::string shown = names.empty() ? "(there are none)" : absl::StrJoin(names, ", ");
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot tell the data format from the columns ", shown, names.size() < file.columns().size() ? ", …" : "",
      ". Known formats: messages; conversations; prompt; prompt and completion, answer, truth or response; prompt, "
      "chosen and rejected; chosen and rejected as conversations; instruction and output, with or without input; "
      "question and answer; text; and verl's prompt with data_source and reward_model. For others, name the columns "
      "with data.columns.prompt, data.columns.chosen, data.columns.conversation and so on"));
}

// Checks that the first records have nothing that is not read but belongs to the conversation; Dataset checks the
// others.
absl::Status CheckNothingIsLost(const FirstRecords& records, Adapter& adapter) {
  if (adapter.style != Adapter::Style::kChat && adapter.name != "alpaca") return absl::OkStatus();
  adapter.unread = {"system", "history"};
  if (adapter.style != Adapter::Style::kChat) adapter.unread.push_back("tools");
  for (const std::string& column : adapter.unread) {
    if (!records.FirstCell(column).is_nothing()) return UnreadColumn(adapter, column);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UnreadColumn(const Adapter& adapter, absl::string_view column) {
  return absl::InvalidArgumentError(
      absl::StrCat("the column '", column,
                   "' is not supported, and would be left out of the conversations; put what it says into the turns, "
                   "or, to leave it out, set data.name to ",
                   adapter.conversation.empty() ? "custom" : "chat", " and data.columns to the columns to read"));
}

absl::StatusOr<Adapter> RecogniseForm(const RecordFile& file, const Adapter& given) {
  const FirstRecords records(file);
  Adapter adapter = FindFields(records, given);
  FindStyle(records, adapter);
  const bool has_any =
      !adapter.prompt.empty() || !adapter.chosen.empty() || !adapter.conversation.empty() || !adapter.text.empty();
  if (!has_any) return UnknownForm(file);
  TDOCK_RETURN_IF_ERROR(CheckNothingIsLost(records, adapter));
  return adapter;
}

}  // namespace tdock::data
