// Conversations of an agent that asks for replies: what goes on from the tokens that were sampled, and what begins
// anew.
#include "trainer/stages/conversations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/json_text.h"
#include "core/base/testing/fails.h"
#include "text/char_tokenizer.h"
#include "text/turn_json.h"

namespace tdock::trainer {
namespace {

using environment::ChatRequest;
using testing::ElementsAre;
using testing::SizeIs;
using DeltaKind = text::ReplyDelta::Kind;

// Writes reasoning only behind the last question, and calls as Hermes does.
constexpr char kTemplate[] =
    "{% if bright %}!{% endif %}{% if tools %}({{ tools | tojson }}){% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr char kTools[] = R"([{"type":"function","function":{"name":"add","parameters":{}}}])";

class ConversationsTest : public testing::Test {
 protected:
  ConversationsTest() {
    std::vector<text::CharTokenizer::Token> tokens = {{.text = "\n"}};
    for (char c = ' '; c <= '~'; ++c) tokens.push_back({.text = std::string(1, c)});
    for (const char* special : {"<|im_start|>", "<|im_end|>", "<pad>"}) {
      tokens.push_back({.text = special, .special = true});
    }
    const auto end = static_cast<int32_t>(tokens.size()) - 2;
    tokenizer_ = *text::CharTokenizer::FromTokens(tokens, end, end + 1);
    rules_ = {.tokenizer = tokenizer_.get(), .chat_template = &template_};
  }

  // Messages as JSON.
  static ChatRequest Chat(const std::string& messages, const std::string& tools = "") {
    ChatRequest request{.tools = tools};
    request.turns = *text::ReadTurns(ReadOrderedJson(messages));
    return request;
  }
  engine::Completion Sampled(const std::string& said) const {
    engine::Completion completion;
    completion.tokens = *tokenizer_->Encode(said);
    completion.tokens.push_back(*tokenizer_->TokenToId("<|im_end|>"));
    completion.log_probs.assign(completion.tokens.size(), -1.0F);
    completion.finished = true;
    completion.finish_reason = engine::FinishReason::kEndToken;
    return completion;
  }
  std::string Text(const std::vector<int32_t>& ids) const {
    return *tokenizer_->Decode(ids, text::SpecialTokens::kKeep);
  }
  // The number of the conversation.
  size_t Ask(const ChatRequest& request) {
    const auto asked = conversations_.Ask(request, room_);
    EXPECT_TRUE(asked.ok()) << asked.status();
    if (!asked.ok()) return 99;
    asked_ = asked->tokens;
    return asked->conversation;
  }

  std::unique_ptr<text::CharTokenizer> tokenizer_;
  const text::ChatTemplate template_ = *text::ChatTemplate::Parse(kTemplate);
  TurnRules rules_;
  const environment::EpisodeRow row_ = {.prompt = "1+1?"};
  Conversations conversations_{rules_, row_};
  Conversations::Room room_ = [](int64_t, int64_t) { return 64; };
  std::vector<int32_t> asked_;
};

constexpr char kQuestion[] = R"([{"role":"user","content":"1+1?"}])";

TEST_F(ConversationsTest, GoesOnFromTheTokensThatWereSampled) {
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  EXPECT_EQ(Text(asked_), "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
  const engine::Completion said = Sampled("  Two. ");  // which the template does not trim, and the client may
  EXPECT_THAT(conversations_.AddReply(0, said).said, SizeIs(1));
  const std::vector<int32_t> before = conversations_.row().tokens();
  ASSERT_EQ(Ask(Chat(R"([{"role":"user","content":"1+1? "},{"role":"assistant","content":"Two."},
                         {"role":"user","content":"Sure?"}])")),
            0u);
  ASSERT_GT(asked_.size(), before.size());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), asked_.begin())) << Text(asked_);
  EXPECT_EQ(Text({asked_.begin() + static_cast<std::ptrdiff_t>(before.size()), asked_.end()}),
            "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n");
  conversations_.AddReply(0, Sampled("Yes."));
  EXPECT_EQ(conversations_.forks(), 0);
  EXPECT_TRUE(conversations_.row_is_finished());
  conversations_.AddRewards({{"right", 1.0}});
  const std::vector<TranscriptTurn> turns = conversations_.AllTurns();
  ASSERT_THAT(turns, SizeIs(3));
  EXPECT_FALSE(turns.front().is_fork) << "a single conversation needs no prompt of its own";
  EXPECT_THAT(turns.back().rewards, ElementsAre(testing::Pair("right", 1.0)));
}

TEST_F(ConversationsTest, CallsGoOnWhateverTheirIdsAndTheFormOfTheirJson) {
  ASSERT_EQ(Ask(Chat(kQuestion, kTools)), 0u);
  EXPECT_THAT(Text(asked_), testing::HasSubstr("\"add\""));
  const auto deltas =
      conversations_.AddReply(0, Sampled("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>"))
          .said;
  ASSERT_THAT(deltas, SizeIs(2));
  EXPECT_EQ(deltas[0].kind, DeltaKind::kCall);
  EXPECT_EQ(deltas[0].text, "add");
  EXPECT_NE(deltas[0].id, "");
  const std::string repeats = R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":null,"tool_calls":
      [{"id":"mine","type":"function","function":{"name":"add","arguments":"{ \"a\" : 1 }"}}]},
      {"role":"tool","content":"2","tool_call_id":"mine"}])";
  EXPECT_EQ(Ask(Chat(repeats, kTools)), 0u);
  conversations_.AddReply(0, Sampled("2"));
  EXPECT_EQ(conversations_.forks(), 0);
  EXPECT_EQ(Ask(Chat(repeats)), 1u) << "without the tools it is another conversation";
}

TEST_F(ConversationsTest, ARewrittenHistoryBeginsAnewAndTheLastReplyIsTheRows) {
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  conversations_.AddReply(0, Sampled("Two."));
  ASSERT_EQ(Ask(Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"Three."},
                         {"role":"user","content":"Sure?"}])")),
            1u);
  EXPECT_THAT(Text(asked_), testing::HasSubstr("Three."));
  conversations_.AddReply(1, Sampled("No."));
  EXPECT_EQ(Text(conversations_.row().response()), "No.<|im_end|>");
  EXPECT_EQ(conversations_.forks(), 1);
  const std::vector<TranscriptTurn> turns = conversations_.AllTurns();
  ASSERT_THAT(turns, SizeIs(4));
  EXPECT_TRUE(turns[0].is_fork && turns[2].is_fork);
  EXPECT_EQ(turns[1].text, "Two.");
  EXPECT_EQ(turns[3].text, "No.");
  EXPECT_EQ(turns[2].ids, conversations_.row().prompt());
  // The first one goes on, and is the row again.
  ASSERT_EQ(Ask(Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"Two."},
                         {"role":"user","content":"Sure?"}])")),
            0u);
  conversations_.AddReply(0, Sampled("Yes."));
  EXPECT_THAT(Text(conversations_.row().response()), testing::StartsWith("Two."));
  EXPECT_EQ(conversations_.AllTurns().back().text, "Yes.");
}

TEST_F(ConversationsTest, AskedAtTheSameTimeTheSameIsTwoConversationsAndGivenUpItIsAskedAgain) {
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  ASSERT_EQ(Ask(Chat(kQuestion)), 1u);
  conversations_.GiveUp(0);
  const std::vector<int32_t> first = asked_;
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  EXPECT_EQ(asked_, first);
  EXPECT_FALSE(conversations_.has_row());
  conversations_.AddReply(1, Sampled("Two."));
  conversations_.GiveUp(0);
  EXPECT_TRUE(conversations_.has_row());
  EXPECT_EQ(conversations_.forks(), 0) << "what got no reply is none";
  EXPECT_THAT(conversations_.AllTurns(), SizeIs(1));
}

TEST_F(ConversationsTest, ReasoningMayBeLeftOutButNotChanged) {
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  const auto deltas = conversations_.AddReply(0, Sampled("<think>1 and 1</think>Two.")).said;
  ASSERT_THAT(deltas, SizeIs(2));
  EXPECT_EQ(deltas[0].kind, DeltaKind::kReasoning);
  const auto more = [](const std::string& reply) {
    return Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"Two.")" + reply +
                R"(},{"role":"user","content":"Sure?"}])");
  };
  ASSERT_EQ(Ask(more(R"(,"reasoning_content":"other")")), 1u);
  ASSERT_EQ(Ask(more("")), 0u);
  // The template drops it from earlier turns, and so the row is forked.
  EXPECT_EQ(Text(asked_),
            "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nSure?"
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(Text(conversations_.row().response()), testing::StartsWith("<think>")) << "until there is a reply";
  EXPECT_EQ(conversations_.AddReply(0, Sampled("Yes.")).prompt_ids, asked_);
  EXPECT_EQ(Text(conversations_.row().response()), "Yes.<|im_end|>");
  EXPECT_EQ(conversations_.forks(), 1);
}

TEST_F(ConversationsTest, CallsAndReasoningThatAreNotAskedForAreText) {
  ChatRequest request = Chat(kQuestion);
  request.reads_calls = request.reads_reasoning = false;
  ASSERT_EQ(Ask(request), 0u);
  const std::string said = "<think>hm</think><tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
  const auto deltas = conversations_.AddReply(0, Sampled(said)).said;
  ASSERT_THAT(deltas, SizeIs(1));
  EXPECT_EQ(deltas[0].kind, DeltaKind::kContent);
  EXPECT_EQ(deltas[0].text, said);
}

TEST_F(ConversationsTest, IdsOfEarlierCallsMakeNoDifferenceAndAnythingMayBeGivenAsReasoning) {
  const auto turns = [](const std::string& id, const std::string& reasoning, const std::string& more) {
    return Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"a","reasoning_content":)" +
                reasoning + R"(,"tool_calls":[{"id":")" + id +
                R"(","type":"function","function":{"name":"add","arguments":{}}}]},)" +
                R"({"role":"tool","content":"2","tool_call_id":")" + id + R"("})" + more + "]");
  };
  ASSERT_EQ(Ask(turns("one", R"(["r"])", "")), 0u);
  conversations_.AddReply(0, Sampled("2"));
  const std::string more = R"(,{"role":"assistant","content":"2"},{"role":"user","content":"Sure?"})";
  EXPECT_EQ(Ask(turns("one", R"("r")", more)), 1u);
  EXPECT_EQ(Ask(turns("other", R"(["r"])", more)), 0u);
}

TEST_F(ConversationsTest, OfSpecialTokensOnlyThoseOfCallsAreTold) {
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  engine::Completion said = Sampled("Two.");
  said.tokens.insert(said.tokens.begin() + 1, *tokenizer_->TokenToId("<pad>"));
  said.log_probs.push_back(-1.0F);
  const auto deltas = conversations_.AddReply(0, said).said;
  ASSERT_THAT(deltas, SizeIs(1));
  EXPECT_EQ(deltas[0].text, "Two.");
  EXPECT_EQ(conversations_.row().response(), said.tokens);
}

TEST_F(ConversationsTest, WhatNobodyAnswersIsNotInTheRow) {
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  conversations_.AddReply(0, Sampled("Two."));
  const std::vector<int32_t> before = conversations_.row().tokens();
  const ChatRequest more = Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"Two."},
                                    {"role":"user","content":"Sure?"}])");
  ASSERT_EQ(Ask(more), 0u);
  const std::vector<int32_t> asked = asked_;
  EXPECT_EQ(conversations_.row().tokens(), before);
  conversations_.GiveUp(0);
  EXPECT_EQ(conversations_.row().tokens(), before);
  ASSERT_EQ(Ask(more), 0u);
  EXPECT_EQ(asked_, asked);
}

TEST_F(ConversationsTest, AStopTextIsTrainedAndNotTold) {
  ChatRequest request = Chat(kQuestion);
  ASSERT_EQ(Ask(request), 0u);
  engine::Completion said = Sampled("Two.\nObs");
  said.tokens.pop_back();
  said.log_probs.pop_back();
  said.finish_reason = engine::FinishReason::kStop;
  said.text_bytes = 4;
  const auto deltas = conversations_.AddReply(0, said).said;
  ASSERT_THAT(deltas, SizeIs(1));
  EXPECT_EQ(deltas[0].text, "Two.");
  EXPECT_EQ(conversations_.row().response(), said.tokens);
}

TEST_F(ConversationsTest, VariablesAreTheTemplatesAndOfOneConversation) {
  ChatRequest request = Chat(kQuestion);
  request.template_variables = R"({"bright": true})";
  ASSERT_EQ(Ask(request), 0u);
  EXPECT_EQ(Text(asked_).front(), '!');
  conversations_.AddReply(0, Sampled("Two."));
  request.template_variables = R"({"dark": true})";
  EXPECT_THAT(conversations_.Ask(request, room_).status(), Fails(absl::StatusCode::kInvalidArgument, {"dark"}));
}

TEST_F(ConversationsTest, WithoutRoomNothingIsAdded) {
  int64_t used_before = -1;
  room_ = [&](int64_t used, int64_t) -> absl::StatusOr<int64_t> {
    used_before = used;
    if (used > 0) return absl::OutOfRangeError("no room");
    return 8;
  };
  ASSERT_EQ(Ask(Chat(kQuestion)), 0u);
  conversations_.AddReply(0, Sampled("Two."));
  const std::vector<int32_t> before = conversations_.row().tokens();
  const ChatRequest more = Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"Two."},
                                    {"role":"user","content":"Sure?"}])");
  EXPECT_THAT(conversations_.Ask(more, room_).status(), Fails(absl::StatusCode::kOutOfRange, {"no room"}));
  EXPECT_GT(used_before, 5);
  EXPECT_EQ(conversations_.row().tokens(), before);
  room_ = [](int64_t, int64_t) { return 8; };
  EXPECT_EQ(Ask(more), 0u) << "it still goes on";
}

TEST_F(ConversationsTest, AsTextTheRowsPromptHasTheRowsTokens) {
  const environment::EpisodeRow row{.prompt = "1+1?", .prompt_ids = {5, 6}};
  const TurnRules rules{
      .format = environment::TurnFormat::kText, .tool_format = text::ReplyForm::kPlain, .tokenizer = tokenizer_.get()};
  Conversations conversations(rules, row);
  const auto asked = conversations.Ask(Chat(kQuestion), room_);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_THAT(asked->tokens, ElementsAre(5, 6));
  conversations.AddReply(0, Sampled("2"));
  const auto more = conversations.Ask(Chat(R"([{"role":"user","content":"1+1?"},{"role":"assistant","content":"2"},
                                               {"role":"user","content":">"}])"),
                                      room_);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->conversation, 0u);
  EXPECT_EQ(Text({more->tokens.begin() + 2, more->tokens.end()}), "2<|im_end|>>");
  const auto other = conversations.Ask(Chat(R"([{"role":"user","content":"2+2?"}])"), room_);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(Text(other->tokens), "2+2?");
  EXPECT_THAT(conversations.Ask(Chat(kQuestion, kTools), room_).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'tools'", "environment.format"}));
}

}  // namespace
}  // namespace tdock::trainer
