#include "inference/responses.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

const char* StatusOf(engine::FinishReason finish) {
  switch (finish) {
    case engine::FinishReason::kEndToken:
    case engine::FinishReason::kStop:
      return "completed";
    case engine::FinishReason::kAborted:
      return "cancelled";
    default:
      return "incomplete";
  }
}

Json UsageOfResponse(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

void ResponseItems::AddLogProbs(Json log_probs) {
  for (Json& one : log_probs) pending_log_probs_.push_back(std::move(one));
}

void ResponseItems::Add(const text::ReplyDelta& delta) {
  using DeltaKind = text::ReplyDelta::Kind;
  if (delta.kind == DeltaKind::kCall) return Open(Kind::kCall, delta);
  if (delta.kind == DeltaKind::kArguments) return AddArguments(delta.text);
  const Kind kind = delta.kind == DeltaKind::kReasoning ? Kind::kReasoning : Kind::kMessage;
  if (open_ != kind) Open(kind, delta);
  AddText(delta);
}

Json ResponseItems::EventOfItem(const char* type) const {
  Json event = {{"type", type}, {"output_index", items_.size()}};
  if (item_.contains("id")) event["item_id"] = item_["id"];
  return event;
}

// The part of an item that has its text.
Json ResponseItems::PartOf(const std::string& text) const {
  if (open_ == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", log_probs_}};
}

void ResponseItems::Open(Kind kind, const text::ReplyDelta& delta) {
  Finish();
  open_ = kind;
  text_.clear();
  log_probs_ = Json::array();
  const char* const prefix = kind == Kind::kReasoning ? "rs_" : kind == Kind::kMessage ? "msg_" : "fc_";
  const std::string id = absl::StrCat(prefix, id_, "_", items_.size());
  if (kind == Kind::kCall) {
    item_ = {{"type", "function_call"}, {"id", id},        {"call_id", delta.id},
             {"name", delta.text},      {"arguments", ""}, {"status", "in_progress"}};
  } else if (kind == Kind::kReasoning) {
    item_ = {{"type", "reasoning"},
             {"id", id},
             {"summary", Json::array()},
             {"content", Json::array()},
             {"status", "in_progress"}};
  } else {
    item_ = {
        {"type", "message"}, {"id", id}, {"role", "assistant"}, {"content", Json::array()}, {"status", "in_progress"}};
  }
  Json added = {{"type", "response.output_item.added"}, {"output_index", items_.size()}, {"item", item_}};
  events_.push_back(std::move(added));
  if (kind == Kind::kCall) return;
  Json part = EventOfItem("response.content_part.added");
  part["content_index"] = 0;
  part["part"] = PartOf("");
  events_.push_back(std::move(part));
}

void ResponseItems::AddText(const text::ReplyDelta& delta) {
  text_ += delta.text;
  const bool is_message = open_ == Kind::kMessage;
  Json event = EventOfItem(is_message ? "response.output_text.delta" : "response.reasoning_text.delta");
  event["content_index"] = 0;
  event["delta"] = delta.text;
  if (is_message) {
    event["logprobs"] = pending_log_probs_;
    for (Json& one : pending_log_probs_) log_probs_.push_back(std::move(one));
    pending_log_probs_ = Json::array();
  }
  events_.push_back(std::move(event));
}

void ResponseItems::AddArguments(const std::string& text) {
  if (open_ != Kind::kCall) return;  // the call has turned out to be broken
  text_ += text;
  Json event = EventOfItem("response.function_call_arguments.delta");
  event["delta"] = text;
  events_.push_back(std::move(event));
}

void ResponseItems::CloseText() {
  const bool is_message = open_ == Kind::kMessage;
  if (is_message) {  // also of tokens that end the answer, which have no text
    for (Json& one : pending_log_probs_) log_probs_.push_back(std::move(one));
    pending_log_probs_ = Json::array();
  }
  Json done = EventOfItem(is_message ? "response.output_text.done" : "response.reasoning_text.done");
  done["content_index"] = 0;
  done["text"] = text_;
  if (is_message) done["logprobs"] = log_probs_;
  events_.push_back(std::move(done));
  Json part = EventOfItem("response.content_part.done");
  part["content_index"] = 0;
  part["part"] = PartOf(text_);
  item_["content"].push_back(part["part"]);
  events_.push_back(std::move(part));
}

void ResponseItems::Finish(bool is_whole) {
  if (open_ == Kind::kNone) return;
  if (open_ == Kind::kCall) {
    is_whole = is_whole && ReadJson(text_).is_object();
    item_["arguments"] = text_;
    Json done = EventOfItem("response.function_call_arguments.done");
    done["name"] = item_["name"];
    done["arguments"] = text_;
    events_.push_back(std::move(done));
  } else {
    CloseText();
  }
  item_["status"] = is_whole ? "completed" : "incomplete";
  Json done = {{"type", "response.output_item.done"}, {"output_index", items_.size()}, {"item", item_}};
  events_.push_back(std::move(done));
  items_.push_back(std::move(item_));
  item_ = Json();
  open_ = Kind::kNone;
}

std::vector<Json> ResponseItems::TakeEvents() { return std::exchange(events_, {}); }

ResponseWriter::ResponseWriter(const Ask& ask, std::string id, int64_t created, const ServedModel& model)
    : log_probs_(ask.log_probs.has_value()),
      token_ids_(ask.token_ids),
      id_(std::move(id)),
      created_(created),
      model_(model),
      repeated_(ask.repeated),
      items_(id_) {}

Json ResponseWriter::Response(const char* status) const {
  Json response = {{"id", id_},
                   {"object", "response"},
                   {"created_at", created_},
                   {"status", status},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", model_.names.front()},
                   {"system_fingerprint", absl::StrCat("tdock-", model_.instance)},
                   {"output", items_.items()},
                   {"usage", nullptr}};
  const Json repeated = ReadOrderedJson(repeated_);
  if (repeated.is_object()) response.update(repeated);
  return response;
}

Json ResponseWriter::Ended(const Usage& usage) const {
  const engine::FinishReason finish = finish_.value_or(engine::FinishReason::kAborted);
  Json response = Response(StatusOf(finish));
  if (response["status"] == "incomplete") {
    const bool is_full = FinishNameOf(finish) == absl::string_view("length");
    response["incomplete_details"] = {{"reason", is_full ? "max_output_tokens" : FinishNameOf(finish)}};
  }
  response["usage"] = UsageOfResponse(usage);
  response["weight_versions"] = VersionsOf(tokens_);
  if (token_ids_) {
    response["token_ids"] = IdsOf(tokens_);
    response["prompt_token_ids"] = prompt_;
  }
  return response;
}

void ResponseWriter::Read(const Piece& piece) {
  for (const engine::NewToken& token : piece.tokens)
    tokens_.push_back({.token = token.token, .version = token.version});
  if (piece.prompt != nullptr) prompt_ = *piece.prompt;
  if (log_probs_) items_.AddLogProbs(LogProbsOf(piece.tokens, *model_.texts));
  for (const text::ReplyDelta& delta : piece.deltas) items_.Add(delta);
  if (!piece.finish) return;
  finish_ = piece.finish;
  items_.Finish(StatusOf(*finish_) == absl::string_view("completed"));
}

std::string ResponseWriter::Numbered(Json event) {
  const std::string type = event["type"].get<std::string>();
  event["sequence_number"] = events_++;
  return absl::StrCat("event: ", type, "\n", EventOf(JsonText(event)));
}

std::string ResponseWriter::NewEvents() {
  std::string events;
  for (Json& event : items_.TakeEvents()) events += Numbered(std::move(event));
  return events;
}

std::string ResponseWriter::Whole(std::span<const Piece> answers, const Usage& usage) {
  for (const Piece& answer : answers) Read(answer);
  return JsonText(Ended(usage));
}

std::string ResponseWriter::Opening(int64_t) {
  std::string events;
  for (const char* const type : {"response.created", "response.in_progress"}) {
    events += Numbered({{"type", type}, {"response", Response("in_progress")}});
  }
  return events;
}

std::string ResponseWriter::Event(const Piece& piece) {
  Read(piece);
  return NewEvents();
}

std::string ResponseWriter::Closing(const Usage& usage) {
  Json response = Ended(usage);
  const std::string status = response["status"].get<std::string>();
  const char* const type = status == "completed" ? "response.completed" : "response.incomplete";
  return Numbered({{"type", type}, {"response", std::move(response)}});
}

}  // namespace tdock::inference
