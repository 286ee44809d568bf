#include "dock/compat/mindspeed/testing/fixture.h"

namespace tdock::mindspeed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Multimodal : public testing::Test {
 protected:
  std::shared_ptr<Dock> core_ = MakeLocalDock();
  std::unique_ptr<MultimodalDock> dock_;

  void Make(bool reuse_image_embeds) {
    dock_.reset();
    auto made = MultimodalDock::Make(core_, "images", 3, 2, reuse_image_embeds, absl::ZeroDuration());
    ASSERT_EQ(made.status(), absl::OkStatus());
    dock_ = *std::move(made);
  }
};

TEST_F(Multimodal, SamplesShareTheRowOfTheirPrompt) {
  Make(false);
  ASSERT_EQ(dock_->PutExperience(TokenBatch({{"image", {{1, 1}, {2}, {3, 3, 3}}}, {"image_num", {{1}, {1}, {1}}}}),
                                 {0, 1, 2}),
            absl::OkStatus());
  // Samples 4 and 5 are of prompt 2, samples 0 and 1 of prompt 0.
  const auto groups = dock_->GetExperience({"image", "image_num"}, {4, 5, 0, 1});
  ASSERT_EQ(groups.status(), absl::OkStatus());
  EXPECT_EQ(TokensOf(*groups, "image"), (Tokens{{3, 3, 3}, {1, 1}}));
  EXPECT_THAT(*groups->Values<int64_t>("image"), ElementsAre(3, 3, 3, 1, 1));
  EXPECT_EQ(groups->Find("image_num")->type(), ColumnType::Dense(DType::kI64, {1}));
  const auto rows = dock_->GetExperience({"image"}, {5, 2}, /*get_n_samples=*/false);
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(TokensOf(*rows, "image"), (Tokens{{3, 3, 3}, {2}}));
}

TEST_F(Multimodal, TellsWhatAConsumerReads) {
  Make(false);
  EXPECT_THAT(*dock_->GetColumns("rule_reward"), IsEmpty());
  Batch batch =
      TokenBatch({{"labels", {{1}}}, {"pixel_values", {{1}}}, {"image_grid_thw", {{1}}}, {"image_num", {{1}}}});
  ASSERT_EQ(dock_->PutExperience(batch, {0}), absl::OkStatus());
  EXPECT_THAT(*dock_->GetColumns("rule_reward"), ElementsAre("labels"));
  EXPECT_THAT(*dock_->GetColumns("actor_train"), IsEmpty());  // no video_num yet
  ASSERT_EQ(dock_->PutExperience(TokenBatch({{"video_num", {{0}}}}), {0}), absl::OkStatus());
  EXPECT_THAT(*dock_->GetColumns("actor_train"),
              ElementsAre("pixel_values", "image_grid_thw", "image_num", "video_num"));
  EXPECT_THAT(*dock_->GetColumns("actor_image_embeds"), IsEmpty());
  EXPECT_THAT(*dock_->GetColumns("nobody"), IsEmpty());
  ASSERT_EQ(dock_->Clear(), absl::OkStatus());
  EXPECT_THAT(*dock_->GetColumns("rule_reward"), IsEmpty());

  Make(true);
  ASSERT_EQ(dock_->PutExperience(batch, {0}), absl::OkStatus());
  ASSERT_EQ(dock_->PutExperience(TokenBatch({{"video_num", {{0}}}}), {0}), absl::OkStatus());
  EXPECT_THAT(*dock_->GetColumns("actor_image_embeds"),
              ElementsAre("pixel_values", "image_grid_thw", "image_num", "video_num"));
  EXPECT_THAT(*dock_->GetColumns("actor_train"), IsEmpty());
}

TEST_F(Multimodal, RefusesWhatIsWrong) {
  Make(false);
  EXPECT_THAT(dock_->PutExperience(TokenBatch({{"sound", {{1}}}}), {0}), Fails(Code::kNotFound, {"'sound'"}));
  EXPECT_THAT(dock_->GetExperience({"image"}, {0, 1}).status(), Fails(Code::kDeadlineExceeded, {"'image'"}));
  EXPECT_THAT(dock_->GetExperience({"image"}, {6, 7}).status(), Fails(Code::kInvalidArgument, {"index 3"}));
  EXPECT_THAT(dock_->GetExperience({"image"}, {-1}).status(), Fails(Code::kInvalidArgument, {"index -1"}));
  EXPECT_THAT(dock_->GetExperience({"image"}, {}).status(), Fails(Code::kInvalidArgument));
  EXPECT_THAT(MultimodalDock::Make(core_, "other", 1, 0).status(), Fails(Code::kInvalidArgument, {"n_samples"}));
  ASSERT_EQ(dock_->PutExperience(TokenBatch({{"image_num", {{1, 2}}}}), {0}), absl::OkStatus());
  EXPECT_THAT(dock_->GetExperience({"image_num"}, {0, 1}).status(), Fails(Code::kInvalidArgument, {"'image_num'"}));
  // As many numbers as prompts, but not one each.
  ASSERT_EQ(dock_->PutExperience(TokenBatch({{"image_num", {{}}}}), {1}), absl::OkStatus());
  EXPECT_THAT(dock_->GetExperience({"image_num"}, {0, 1, 2, 3}).status(),
              Fails(Code::kInvalidArgument, {"'image_num'"}));
}

TEST_F(Multimodal, KeepsTheRatesOfSeveralVideosWithTheirPrompt) {
  Make(false);
  ASSERT_EQ(dock_->PutExperience(TokenBatch({{"video_fps", {{24, 30}, {}}}}), {0, 1}), absl::OkStatus());
  const auto got = dock_->GetExperience({"video_fps"}, {0, 1, 2, 3});
  ASSERT_EQ(got.status(), absl::OkStatus());
  EXPECT_EQ(TokensOf(*got, "video_fps"), (Tokens{{24, 30}, {}}));
}

}  // namespace
}  // namespace tdock::mindspeed
