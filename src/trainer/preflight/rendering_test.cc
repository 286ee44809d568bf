#include "trainer/preflight/rendering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "text/char_tokenizer.h"
#include "trainer/preflight/grouped.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

// Characters, of which those at and behind `trained` are trained on.
data::EncodedSample SampleOf(const text::Tokenizer& tokenizer, const std::string& text, size_t trained) {
  data::EncodedSample sample;
  sample.ids = *tokenizer.Encode(text);
  sample.ids.push_back(*tokenizer.eos_id());
  sample.loss_mask.assign(sample.ids.size(), 0);
  for (size_t i = trained; i < sample.loss_mask.size(); ++i) sample.loss_mask[i] = 1;
  return sample;
}

class Rendering : public testing::Test {
 protected:
  std::string Rendered(const std::string& text, size_t trained, const RenderingOptions& options = {}) {
    const auto rendered = RenderSample(*tokenizer_, SampleOf(*tokenizer_, text, trained), options);
    EXPECT_TRUE(rendered.ok()) << rendered.status();
    return rendered.value_or("");
  }
  const std::unique_ptr<text::Tokenizer> tokenizer_ = *text::CharTokenizer::Create("ab=⟦⟧\n\x1b");
};

TEST_F(Rendering, MarksWhatIsTrainedOnWithTheEndToken) {
  EXPECT_EQ(Rendered("ab=ba", 3), "ab=⟦ba<eos>⟧");
  EXPECT_EQ(Rendered("ab=ba", 3, {.terminal = true}), "ab=\x1b[7mba<eos>\x1b[27m");
}

TEST_F(Rendering, TheFirstTokenIsNeverTrainedOnBecauseNothingPredictsIt) { EXPECT_EQ(Rendered("ab", 0), "a⟦b<eos>⟧"); }

TEST_F(Rendering, EscapesControlCharactersAndItsOwnMarks) {
  EXPECT_EQ(Rendered("a\x1b=⟦b⟧\nb", 6), "a\\u001b=\\u27e6b\\u27e7⟦\\n\nb<eos>⟧");
}

TEST_F(Rendering, LeavesOutTheMiddleOfALongPart) {
  const std::string rendered = Rendered(std::string(5000, 'a') + "=" + std::string(4000, 'b'), 5001);
  EXPECT_THAT(rendered, HasSubstr(std::string(300, 'a') + " […4,401 bytes…] " + std::string(299, 'a') + "=⟦bbb"));
  EXPECT_LT(rendered.size(), 1400u);
}

TEST(RenderText, CutsBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "é";
  EXPECT_EQ(RenderText(text, 10), "éé […90 bytes…] ééé");
}

TEST(Grouped, PutsCommasBetweenThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
  EXPECT_EQ(Grouped(-123456), "-123,456");
}

}  // namespace
}  // namespace tdock::trainer
