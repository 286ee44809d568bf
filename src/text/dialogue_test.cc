#include "text/dialogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "text/char_tokenizer.h"
#include "text/conversation.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::text {
namespace {

using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

constexpr int64_t kRoom = 1 << 20;
constexpr char kTurns[] =
    "{%- for m in messages %}{{ m.role ~ '\n' ~ m.content }}<|end|>{{ '\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}assistant{{ '\n' }}{% endif %}";
// What comes before "</t>" in a reply is only shown as long as no message follows.
constexpr char kForgets[] =
    "{%- for m in messages %}{% set said = m.content %}"
    "{%- if m.role == 'assistant' and not loop.last %}{% set said = said.split('</t>')[-1] %}{% endif %}"
    "{{- m.role ~ ':' ~ said }}<|end|>{% endfor %}{%- if add_generation_prompt %}assistant:{% endif %}";

// Bytes, "hello" 259 and <|end|> 261.
std::unique_ptr<Tokenizer> Bytes() { return JsonTokenizer::Create(small::SmallByteLevel(), {}, {}).value(); }

ChatTemplate Parsed(absl::string_view jinja) { return ChatTemplate::Parse(jinja).value(); }

Ids IdsOf(const Tokenizer& tokenizer, absl::string_view text) {
  return tokenizer.Encode(text, {.spelled = SpelledSpecial::kParse}).value();
}

// The prompt of a dialogue in which the model has given `replies`, each to "q".
DialoguePrompt After(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const std::vector<Ids>& replies,
                     std::optional<std::string> system = std::nullopt) {
  Dialogue dialogue(chat_template, tokenizer, std::move(system));
  for (const Ids& reply : replies) {
    EXPECT_TRUE(dialogue.Ask("q", kRoom).ok());
    EXPECT_TRUE(dialogue.Reply(reply).ok());
  }
  return dialogue.Ask("q", kRoom).value();
}

// The tokens that training has for the same conversation.
Ids Trained(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const std::vector<std::string>& replies) {
  std::vector<Turn> turns;
  for (const std::string& reply : replies) {
    turns.push_back({Role::kUser, "q"});
    turns.push_back({Role::kAssistant, reply});
  }
  turns.push_back({Role::kUser, "q"});
  return EncodeConversation(chat_template, tokenizer, turns, {.generation_prompt = true}).value().ids;
}

TEST(Dialogue, HasTheTokensOfTrainingWhereRepliesAreThoseOfTheirText) {
  const auto tokenizer = Bytes();
  for (const char* jinja : {kTurns, kForgets}) {
    const DialoguePrompt prompt =
        After(Parsed(jinja), *tokenizer, {IdsOf(*tokenizer, "hello"), IdsOf(*tokenizer, " hell is")});
    EXPECT_EQ(prompt.ids, Trained(Parsed(jinja), *tokenizer, {"hello", " hell is"}));
    EXPECT_EQ(prompt.rewritten, "");
  }
}

TEST(Dialogue, HasTheTokensOfTrainingWithATokenizerThatBeginsTextsWithASpace) {
  const auto tokenizer = JsonTokenizer::Create(small::SmallByteFallback(), {}, {}).value();
  const ChatTemplate chat_template = Parsed(
      "{%- for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content }}<s>{% endif %}"
      "{% endfor %}");
  const Ids said = EncodeReply(*tokenizer, "[q]", IdsOf(*tokenizer, "[q]"), "ab a").value();
  EXPECT_EQ(After(chat_template, *tokenizer, {said}).ids, Trained(chat_template, *tokenizer, {"ab a"}));
}

TEST(Dialogue, KeepsTheTokensOfRepliesThatTheirTextWouldHaveOthersFor) {
  const auto tokenizer = Bytes();
  const Ids said = {'h', 'e', 'l', 'l', 'o'};
  ASSERT_NE(said, IdsOf(*tokenizer, "hello"));
  Ids expected = IdsOf(*tokenizer, "user\nq<|end|>\nassistant\n");
  expected.insert(expected.end(), said.begin(), said.end());
  const Ids behind = IdsOf(*tokenizer, "<|end|>\nuser\nq<|end|>\nassistant\n");
  expected.insert(expected.end(), behind.begin(), behind.end());
  const DialoguePrompt prompt = After(Parsed(kTurns), *tokenizer, {said});
  EXPECT_EQ(prompt.ids, expected);
  EXPECT_EQ(prompt.rewritten, "");
}

TEST(Dialogue, KeepsRepliesThatEndWithinACharacterOrSayNothing) {
  const auto tokenizer = Bytes();
  for (const Ids& said : {Ids{'a', 0xC3}, Ids{}, Ids{' '}, Ids{261, 'a'}}) {
    Ids expected = IdsOf(*tokenizer, "user\nq<|end|>\nassistant\n");
    expected.insert(expected.end(), said.begin(), said.end());
    const Ids behind = IdsOf(*tokenizer, "<|end|>\nuser\nq<|end|>\nassistant\n");
    expected.insert(expected.end(), behind.begin(), behind.end());
    EXPECT_EQ(After(Parsed(kTurns), *tokenizer, {said}).ids, expected);
  }
}

TEST(Dialogue, KeepsBlanksThatATemplateTakesOffAReply) {
  const auto tokenizer = Bytes();
  const ChatTemplate trims = Parsed(
      "{%- for m in messages %}{{ m.role ~ ':' ~ m.content | trim }}<|end|>{% endfor %}"
      "{%- if add_generation_prompt %}assistant:{% endif %}");
  const DialoguePrompt prompt = After(trims, *tokenizer, {{' ', 'h', 'e', '\n'}});
  EXPECT_EQ(prompt.rewritten, "");
  EXPECT_EQ(*tokenizer->Decode(prompt.ids, SpecialTokens::kKeep),
            "user:q<|end|>assistant: he\n<|end|>user:q<|end|>assistant:");
}

TEST(Dialogue, GoesOnWithTheTextOfATemplateThatPutsASpaceBeforeReplies) {
  const auto tokenizer = Bytes();
  const ChatTemplate spaced = Parsed(
      "{%- for m in messages %}{% if m.role == 'user' %} Human: {{ m.content }} Assistant:"
      "{%- else %} {{ m.content }}<|end|>{% endif %}{% endfor %}");
  const DialoguePrompt prompt = After(spaced, *tokenizer, {IdsOf(*tokenizer, " hello")});
  EXPECT_EQ(prompt.rewritten, "");
  EXPECT_EQ(prompt.ids, Trained(spaced, *tokenizer, {"hello"}));
}

TEST(Dialogue, EncodesAgainAndSaysSoWhereTheTemplateRewritesReplies) {
  const auto tokenizer = Bytes();
  const DialoguePrompt prompt = After(Parsed(kForgets), *tokenizer, {IdsOf(*tokenizer, "a</t>hello")});
  EXPECT_EQ(prompt.ids, Trained(Parsed(kForgets), *tokenizer, {"a</t>hello"}));
  EXPECT_THAT(prompt.rewritten, Mentions({"renders reply 1", "generated"}));
}

TEST(Dialogue, EncodesAgainAndSaysSoWhereTheTemplateMovesTheSystemTurn) {
  const auto tokenizer = Bytes();
  const ChatTemplate moves = Parsed(
      "{%- for m in messages[1:] %}{% if loop.last %}{{ messages[0].content }}{% endif %}{{ m.content }}<|end|>"
      "{%- endfor %}");
  const DialoguePrompt prompt = After(moves, *tokenizer, {IdsOf(*tokenizer, "hello")}, "S:");
  EXPECT_EQ(*tokenizer->Decode(prompt.ids, SpecialTokens::kKeep), "q<|end|>hello<|end|>S:q<|end|>");
  EXPECT_THAT(prompt.rewritten, Mentions({"before reply 1"}));
}

TEST(Dialogue, DropsTheOldestTurnsBehindTheSystemsWhereThereIsNoRoom) {
  const auto tokenizer = Bytes();
  Dialogue dialogue(Parsed(kTurns), *tokenizer, "S");
  const size_t alone = dialogue.Ask("q", kRoom)->ids.size();
  ASSERT_TRUE(dialogue.Reply({'a', 'b'}).ok());
  const size_t second = dialogue.Ask("r", kRoom)->ids.size();
  ASSERT_TRUE(dialogue.Reply({'c', 'd'}).ok());
  const auto third = dialogue.Ask("s", static_cast<int64_t>(second));
  EXPECT_EQ(third->dropped_turns, 2);
  EXPECT_EQ(*tokenizer->Decode(third->ids, SpecialTokens::kKeep),
            "system\nS<|end|>\nuser\nr<|end|>\nassistant\ncd<|end|>\nuser\ns<|end|>\nassistant\n");
  ASSERT_TRUE(dialogue.Reply({'e'}).ok());
  EXPECT_EQ(dialogue.Ask("t", static_cast<int64_t>(alone))->dropped_turns, 4);
  EXPECT_EQ(dialogue.turns().size(), 2U);
}

TEST(Dialogue, GoesOnTheSameAfterMessagesThatWereTakenBackAndTurnsThatWereDropped) {
  const auto tokenizer = Bytes();
  const Ids said = {'h', 'e', 'l', 'l', 'o'};  // not the tokens of its text
  const Ids expected = After(Parsed(kTurns), *tokenizer, {said, said}).ids;
  Dialogue dialogue(Parsed(kTurns), *tokenizer, std::nullopt);
  ASSERT_TRUE(dialogue.Ask("qqqq", kRoom).ok());
  ASSERT_TRUE(dialogue.Reply({'a'}).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(dialogue.Ask("longer than q", kRoom).ok());
    dialogue.Withdraw();
    ASSERT_FALSE(dialogue.Ask("q", 1).ok());
    ASSERT_TRUE(dialogue.Ask("q", kRoom).ok());
    ASSERT_TRUE(dialogue.Reply(said).ok());
  }
  const auto prompt = dialogue.Ask("q", static_cast<int64_t>(expected.size()));
  EXPECT_EQ(prompt->dropped_turns, 2);
  EXPECT_EQ(prompt->ids, expected);
  dialogue.Withdraw();
  EXPECT_EQ(dialogue.Ask("q", kRoom)->ids, expected);
}

TEST(Dialogue, NamesTheMessageThatCannotBeEncoded) {
  const auto tokenizer = *CharTokenizer::Create("qa");
  Dialogue dialogue(*RawTemplate(*tokenizer), *tokenizer, std::nullopt);
  ASSERT_TRUE(dialogue.Ask("q", kRoom).ok());
  ASSERT_TRUE(dialogue.Reply({1}).ok());
  EXPECT_THAT(dialogue.Ask("x", kRoom).status(), Fails(absl::StatusCode::kInvalidArgument, {"turn 3", "\"x\""}));
  EXPECT_EQ(dialogue.Ask("q", kRoom)->ids, (Ids{0, 1, 0}));
}

TEST(Dialogue, RefusesAMessageWithoutRoomAndStaysAsItWas) {
  const auto tokenizer = Bytes();
  Dialogue dialogue(Parsed(kTurns), *tokenizer, std::nullopt);
  const auto first = dialogue.Ask("q", kRoom)->ids.size();
  ASSERT_TRUE(dialogue.Reply({'a'}).ok());
  const std::vector<Turn> before = dialogue.turns();
  const auto refused = dialogue.Ask("qqq", static_cast<int64_t>(first));
  EXPECT_THAT(refused.status(), Fails(absl::StatusCode::kOutOfRange,
                                      {absl::StrCat(first + 2, " tokens"), absl::StrCat("room for ", first)}));
  EXPECT_EQ(dialogue.turns(), before);
  EXPECT_EQ(dialogue.Ask("r", kRoom)->dropped_turns, 0);
}

TEST(Dialogue, ForgetsWhatIsWithdrawnOrCleared) {
  const auto tokenizer = Bytes();
  Dialogue dialogue(Parsed(kTurns), *tokenizer, "S");
  const Ids asked = dialogue.Ask("q", kRoom)->ids;
  dialogue.Withdraw();
  EXPECT_EQ(dialogue.Ask("q", kRoom)->ids, asked);
  ASSERT_TRUE(dialogue.Reply({'a'}).ok());
  dialogue.Clear();
  EXPECT_EQ(dialogue.Ask("q", kRoom)->ids, asked);
}

TEST(RawTemplate, RendersNothingButTheTurns) {
  const auto bytes = Bytes();
  EXPECT_EQ(After(*RawTemplate(*bytes), *bytes, {IdsOf(*bytes, "hello")}).ids, IdsOf(*bytes, "qhelloq"));
  TokenizerConfig config;
  config.bos = "<s>";
  const auto begins = JsonTokenizer::Create(small::SmallByteFallback(), config, {}).value();
  const DialoguePrompt prompt = After(*RawTemplate(*begins), *begins, {});
  ASSERT_FALSE(prompt.ids.empty());
  EXPECT_EQ(prompt.ids.front(), 1);
}

}  // namespace
}  // namespace tdock::text
