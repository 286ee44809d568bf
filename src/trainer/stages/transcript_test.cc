// Conversations as tokens: what is appended, and where a template makes that impossible.
#include "trainer/stages/transcript.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "text/char_tokenizer.h"
#include "text/conversation.h"

namespace tdock::trainer {
namespace {

using text::Role;

// The printable characters, a line end, and the special tokens of ChatML.
std::unique_ptr<text::CharTokenizer> AsciiTokenizer() {
  std::vector<text::CharTokenizer::Token> tokens = {{.text = "\n"}};
  for (char c = ' '; c <= '~'; ++c) tokens.push_back({.text = std::string(1, c)});
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<pad>"}) {
    tokens.push_back({.text = special, .special = true});
  }
  const auto end = static_cast<int32_t>(tokens.size()) - 3;
  return *text::CharTokenizer::FromTokens(tokens, end, end + 2);
}

class TranscriptTest : public testing::Test {
 protected:
  static constexpr char kTools[] = R"([{"type":"function","function":{"name":"add","parameters":{}}}])";

  TurnRules Rules(const text::ChatTemplate& form, const std::string& tools = "") const {
    return {.tokenizer = tokenizer_.get(), .chat_template = &form, .tools = tools};
  }
  std::vector<int32_t> Asking(const text::ChatTemplate& form, const std::vector<text::Turn>& turns,
                              const std::string& tools = "") const {
    return text::EncodeConversation(form, *tokenizer_, turns,
                                    {.generation_prompt = true, .context = {.tools = tools, .documents = ""}})
        ->ids;
  }
  environment::EpisodeRow Row(const text::ChatTemplate& form) const {
    environment::EpisodeRow row{.prompt = question_.content};
    row.messages = {question_};
    row.prompt_ids = Asking(form, row.messages);
    return row;
  }
  // Sampled, with the token that ends it.
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

  const std::unique_ptr<text::CharTokenizer> tokenizer_ = AsciiTokenizer();
  const text::Turn question_{.role = Role::kUser, .content = "1+1?"};
};

TEST_F(TranscriptTest, WhatIsSaidIsWhatTheTemplateAddsUpToTheNextAnswer) {
  const text::ChatTemplate form = *text::ChatTemplate::Named("chatml");
  const TurnRules rules = Rules(form);
  Transcript transcript(rules);
  ASSERT_EQ(transcript.Begin(Row(form)), absl::OkStatus());
  ASSERT_EQ(transcript.AddFirst({}), absl::OkStatus());
  EXPECT_EQ(transcript.prompt(), Asking(form, {question_}));
  transcript.AddReply(Sampled("Two."), *transcript.ReadReply("Two."));
  const text::Turn more{.role = Role::kUser, .content = "Sure?"};
  auto next = transcript.Render({more});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(next->fork);
  EXPECT_EQ(Text(next->ids), "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n");
  transcript.Add(*next);
  EXPECT_EQ(transcript.tokens(), Asking(form, {question_, {.role = Role::kAssistant, .content = "Two."}, more}));
  EXPECT_EQ(transcript.mask().front(), 1);
  EXPECT_EQ(transcript.mask().back(), 0);
}

TEST_F(TranscriptTest, WhatContinuesThePromptIsTheEndOfItsLastTurn) {
  const text::ChatTemplate form = *text::ChatTemplate::Named("chatml");
  const TurnRules rules = Rules(form);
  const text::Turn more{.role = Role::kUser, .content = " Think."}, hint{.role = Role::kUser, .content = "Hint."};
  Transcript transcript(rules);
  ASSERT_EQ(transcript.Begin(Row(form)), absl::OkStatus());
  ASSERT_EQ(transcript.AddFirst({.messages = {more, hint}, .continues = true}), absl::OkStatus());
  EXPECT_EQ(transcript.prompt(), Asking(form, {{.role = Role::kUser, .content = "1+1? Think."}, hint}));
  Transcript of_a_tool(rules);
  ASSERT_EQ(of_a_tool.Begin(Row(form)), absl::OkStatus());
  EXPECT_THAT(of_a_tool.AddFirst({.messages = {{.role = Role::kTool, .content = "2"}}, .continues = true}),
              Fails(absl::StatusCode::kInvalidArgument, {"the tool", "the user"}));
}

TEST_F(TranscriptTest, AReplyStaysAsItWasSampledWhereTheTemplateWritesTheSameOtherwise) {
  const text::ChatTemplate form = *text::ChatTemplate::Parse(
      "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "{% if m.tool_calls %}{% for call in m.tool_calls %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
      "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const TurnRules rules = Rules(form, kTools);
  Transcript transcript(rules);
  ASSERT_EQ(transcript.Begin(Row(form)), absl::OkStatus());
  ASSERT_EQ(transcript.AddFirst({}), absl::OkStatus());
  EXPECT_EQ(transcript.prompt(), Asking(form, {question_}, kTools)) << "with the tools";
  const std::string said = R"(  <tool_call>{"arguments":{"a":1},"name":"add"}</tool_call>)";
  transcript.AddReply(Sampled(said), *transcript.ReadReply(said));
  auto next = transcript.Render({{.role = Role::kTool, .content = "2"}});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(next->fork) << Text(next->ids);
  EXPECT_EQ(Text(next->ids).substr(0, 13), "\n<|im_start|>");
  transcript.Add(*next);
  EXPECT_NE(Text(transcript.tokens()).find(said + "<|im_end|>\n"), std::string::npos);
}

TEST_F(TranscriptTest, ATemplateThatDropsThinkingForksTheRow) {
  const text::ChatTemplate form = *text::ChatTemplate::Parse(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
      "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const TurnRules rules = Rules(form);
  Transcript transcript(rules);
  ASSERT_EQ(transcript.Begin(Row(form)), absl::OkStatus());
  ASSERT_EQ(transcript.AddFirst({}), absl::OkStatus());
  const std::string said = "<think>hm</think>Two.";
  transcript.AddReply(Sampled(said), *transcript.ReadReply(said));
  auto next = transcript.Render({{.role = Role::kUser, .content = "Sure?"}});
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE(next->fork);
  transcript.Add(*next);
  EXPECT_EQ(Text(transcript.prompt()),
            "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nSure?"
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_TRUE(transcript.response().empty());
  EXPECT_EQ(transcript.forks(), 1);
  EXPECT_EQ(transcript.response_tokens(), std::ssize(Sampled(said).tokens)) << "they still count";
  ASSERT_EQ(transcript.turns().size(), 2u);
  EXPECT_TRUE(transcript.turns()[1].is_fork);
}

TEST_F(TranscriptTest, RowsThatItCannotRenderAreNamed) {
  const text::ChatTemplate form = *text::ChatTemplate::Named("chatml");
  const TurnRules rules = Rules(form);
  environment::EpisodeRow row = Row(form);
  row.prompt_ids.pop_back();
  EXPECT_THAT(Transcript(rules).Begin(row),
              Fails(absl::StatusCode::kInvalidArgument, {"chat template", "data.truncation"}));
  row.messages.clear();
  EXPECT_THAT(Transcript(rules).Begin(row),
              Fails(absl::StatusCode::kInvalidArgument, {"plain text", "environment.format", "data.style"}));
  TurnRules without = rules;
  without.chat_template = nullptr;
  EXPECT_THAT(CheckRules(without, false), Fails(absl::StatusCode::kInvalidArgument, {"data.template"}));
  EXPECT_EQ(CheckRules(without, true), absl::OkStatus());
}

}  // namespace
}  // namespace tdock::trainer
