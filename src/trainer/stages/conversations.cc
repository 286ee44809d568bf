#include "trainer/stages/conversations.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

bool SameText(absl::string_view a, absl::string_view b) {
  size_t i = 0, j = 0;
  for (;;) {
    while (i < a.size() && absl::ascii_isspace(static_cast<unsigned char>(a[i]))) ++i;
    while (j < b.size() && absl::ascii_isspace(static_cast<unsigned char>(b[j]))) ++j;
    if (i == a.size() || j == b.size()) return i == a.size() && j == b.size();
    if (a[i++] != b[j++]) return false;
  }
}

Json FieldsOf(const text::Turn& turn) { return turn.fields.empty() ? Json::object() : ReadJson(turn.fields); }

// Names and arguments of calls: clients may leave out or change all else.
Json CallsOf(const Json& fields) {
  Json calls = Json::array();
  for (const Json& call : fields.value("tool_calls", Json::array())) {
    const Json function = call.value("function", Json::object());
    calls.push_back({function.value("name", Json()), function.value("arguments", Json())});
  }
  return calls;
}

std::string TextIn(const Json& fields, const char* name) {
  const auto found = fields.find(name);
  return found != fields.end() && found->is_string() ? found->get<std::string>() : "";
}

// True if an agent that was told `own` may have given it as `asked`: up to white space at its ends and the ids of
// calls, and for a reply up to all white space, the form of JSON and its reasoning, which may be left out.
bool SaysTheSame(const text::Turn& own, const text::Turn& asked) {
  if (own.role != asked.role) return false;
  const bool is_reply = own.role == text::Role::kAssistant;
  const bool same_text = is_reply
                             ? SameText(own.content, asked.content)
                             : absl::StripAsciiWhitespace(own.content) == absl::StripAsciiWhitespace(asked.content);
  if (!same_text) return false;
  if (own.fields == asked.fields) return true;
  Json told = FieldsOf(own), given = FieldsOf(asked);
  if (!is_reply) {
    for (Json* const fields : {&told, &given}) fields->erase("tool_call_id");
    return told == given;
  }
  if (CallsOf(told) != CallsOf(given)) return false;
  const std::string reasoning = TextIn(given, "reasoning_content");
  return reasoning.empty() || SameText(reasoning, TextIn(told, "reasoning_content"));
}

}  // namespace

struct Conversations::Conversation {
  explicit Conversation(const TurnRules& of_run) : rules(of_run) {}

  TurnRules rules;  // with the tools and the template of its requests
  std::optional<text::ChatTemplate> own_template = {};
  std::string template_variables = {};
  std::optional<Transcript> transcript = {};
  std::vector<int32_t> first_prompt = {};
  std::vector<text::Turn> told = {};  // up to its last reply, as the agent knows it
  // The turns of the last request, what is added with the reply to it, and how that is read.
  std::vector<text::Turn> asked = {};
  std::optional<Transcript::Next> next = {};
  ReplyRules reading = {};
  bool waits = false;      // for that reply
  bool finished = false;   // the model has ended its last reply
  int64_t last_reply = 0;  // the number of that among all; 0: there is none

  bool has_reply() const { return last_reply > 0; }
};

Conversations::Conversations(const TurnRules& rules, const environment::EpisodeRow& row)
    : rules_(rules), episode_row_(row) {}
Conversations::~Conversations() = default;

absl::StatusOr<std::unique_ptr<Conversations::Conversation>> Conversations::Begin(
    const environment::ChatRequest& request) const {
  const bool is_text = rules_.format == environment::TurnFormat::kText;
  if (is_text && !(request.tools.empty() && request.template_variables.empty())) {
    return absl::InvalidArgumentError(
        "'tools' and 'chat_template_kwargs' are for a chat template, and environment.format is text");
  }
  auto begun = std::make_unique<Conversation>(rules_);
  begun->rules.tools = request.tools;
  // An agent may say as much as it likes.
  begun->rules.max_observation_tokens = std::numeric_limits<int64_t>::max();
  begun->template_variables = request.template_variables;
  if (!request.template_variables.empty()) {
    TDOCK_ASSIGN_OR_RETURN(begun->own_template, rules_.chat_template->WithVariables(request.template_variables));
    begun->rules.chat_template = &*begun->own_template;
  }
  begun->transcript.emplace(begun->rules);
  TDOCK_RETURN_IF_ERROR(begun->transcript->BeginWith(request.turns, episode_row_));
  begun->first_prompt = begun->transcript->prompt();
  return begun;
}

std::optional<size_t> Conversations::Find(const environment::ChatRequest& request) const {
  std::optional<size_t> longest;
  for (size_t i = 0; i < conversations_.size(); ++i) {
    const Conversation& one = *conversations_[i];
    // Behind a reply there is more; what got none is asked again as it was.
    const std::vector<text::Turn>& known = one.has_reply() ? one.told : one.asked;
    const bool fits = one.has_reply() ? request.turns.size() > known.size() : request.turns.size() == known.size();
    if (one.waits || !fits || one.rules.tools != request.tools ||
        one.template_variables != request.template_variables) {
      continue;
    }
    const bool same = one.has_reply() ? std::equal(known.begin(), known.end(), request.turns.begin(), SaysTheSame)
                                      : known == request.turns;
    if (same && (!longest || one.told.size() > conversations_[*longest]->told.size())) longest = i;
  }
  return longest;
}

absl::StatusOr<Conversations::Asked> Conversations::Ask(const environment::ChatRequest& request, const Room& room) {
  const std::optional<size_t> found = Find(request);
  std::unique_ptr<Conversation> begun;
  if (!found) {
    TDOCK_ASSIGN_OR_RETURN(begun, Begin(request));
  }
  Conversation& one = found ? *conversations_[*found] : *begun;
  Asked asked{.conversation = found.value_or(conversations_.size())};
  std::optional<Transcript::Next> next;
  if (one.has_reply()) {
    TDOCK_ASSIGN_OR_RETURN(
        next, one.transcript->Render(
                  {request.turns.begin() + static_cast<std::ptrdiff_t>(one.told.size()), request.turns.end()}));
  }
  const bool forks = next && next->fork;
  if (!forks) asked.tokens = one.transcript->tokens();
  if (next) asked.tokens.insert(asked.tokens.end(), next->ids.begin(), next->ids.end());
  const int64_t used = one.transcript->response_tokens() + (next && !forks ? std::ssize(next->ids) : 0);
  TDOCK_ASSIGN_OR_RETURN(asked.room, room(used, std::ssize(asked.tokens)));
  one.asked = request.turns;
  one.next = std::move(next);
  one.reading = {.reads_calls = request.reads_calls, .reads_reasoning = request.reads_reasoning};
  one.waits = true;
  if (begun != nullptr) conversations_.push_back(std::move(begun));
  return asked;
}

Conversations::Reply Conversations::AddReply(size_t conversation, const engine::Completion& completion) {
  Conversation& one = *conversations_[conversation];
  if (one.next) one.transcript->Add(*std::exchange(one.next, std::nullopt));
  Reply reply{.prompt_ids = one.transcript->tokens()};
  one.reading.id_seed = absl::StrCat(++replies_);
  // Tokens that the engine sampled can be decoded.
  const std::string said = ReplyText(*one.rules.tokenizer, completion).value_or("");
  const absl::StatusOr<text::Turn> message = one.transcript->ReadReply(said, one.reading);
  const text::ParsedReply parsed = one.transcript->ParseReply(completion, one.reading);
  one.transcript->AddReply(completion,
                           message.ok() ? *message : text::Turn{.role = text::Role::kAssistant, .content = said});
  one.told = std::exchange(one.asked, {});
  one.told.push_back(text::TurnOf(parsed));
  one.waits = false;
  one.finished = completion.finished;
  one.last_reply = replies_;
  row_conversation_ = conversation;
  reply.said = text::DeltasOf(parsed);
  return reply;
}

void Conversations::GiveUp(size_t conversation) {
  conversations_[conversation]->waits = false;
  conversations_[conversation]->next.reset();
}

const Transcript& Conversations::row() const { return *conversations_[*row_conversation_]->transcript; }

bool Conversations::row_is_finished() const { return conversations_[*row_conversation_]->finished; }

void Conversations::AddRewards(const environment::Rewards& rewards) {
  conversations_[*row_conversation_]->transcript->AddRewards(rewards);
}

std::vector<TranscriptTurn> Conversations::AllTurns() const {
  std::vector<const Conversation*> some;
  for (const auto& one : conversations_) {
    if (one->has_reply()) some.push_back(one.get());
  }
  std::sort(some.begin(), some.end(), [](const auto* a, const auto* b) { return a->last_reply < b->last_reply; });
  if (some.size() == 1) return some.front()->transcript->turns();
  std::vector<TranscriptTurn> all;
  for (const Conversation* one : some) {
    const std::vector<TranscriptTurn>& turns = one->transcript->turns();
    all.push_back({.is_fork = true, .ids = one->first_prompt});
    all.back().text = one->rules.tokenizer->Decode(all.back().ids, text::SpecialTokens::kKeep).value_or("");
    all.insert(all.end(), turns.begin(), turns.end());
  }
  return all;
}

int64_t Conversations::forks() const {
  int64_t forks = -1;
  for (const auto& one : conversations_) {
    if (one->has_reply()) forks += 1 + one->transcript->forks();
  }
  return std::max<int64_t>(forks, 0);
}

}  // namespace tdock::trainer
