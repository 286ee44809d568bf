#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/train_command.h"
#include "core/base/status.h"
#include "dock/local/shared_dock.h"
#include "runtime/launch/rank_environment.h"
#include "trainer/distributed/run_ranks.h"
#include "trainer/run_page/page_server.h"

namespace tdock::cli {
namespace {

// Rank 0, which has the run.
absl::Status TrainFirst(CommandedRun& run, const runtime::RankEnvironment& environment, trainer::PageServer* page) {
  trainer::RunContext context = run.context();
  context.open_shared_dock = dock::OpenSharedDock;
  std::unique_ptr<trainer::RunRanks> ranks;
  if (environment.world_size > 1) {
    auto opened = trainer::RunRanks::Open(run.recipe(), environment, context);
    TDOCK_RETURN_IF_ERROR(Refused(opened.status()));
    ranks = *std::move(opened);
    ranks->AddTo(context);
  }
  absl::Status trained = run.Train(std::move(context), [&] {
    if (ranks != nullptr) TDOCK_RETURN_IF_ERROR(ranks->AwaitReady());
    if (page != nullptr) page->Follow(run.recipe().config().trainer.run_dir);
    return absl::OkStatus();
  });
  // One rank that ends ends all ranks.
  if (ranks != nullptr) ranks->End(trained);
  return trained;
}

// Trains with what the executable `tdock` does not have.
absl::Status TrainHere(const TrainArguments& arguments) {
  const auto read = runtime::RankEnvironment::Read(::getenv);
  TDOCK_RETURN_IF_ERROR(Refused(read.status()));
  const runtime::RankEnvironment environment = read->value_or(runtime::RankEnvironment());
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<CommandedRun> run, CommandedRun::Load(arguments));
  if (environment.rank > 0) return Failed(trainer::ServeRun(run->recipe(), environment, run->context()));
  std::unique_ptr<trainer::PageServer> page;
  if (!arguments.page.empty()) {
    auto opened = trainer::OpenPage("", arguments.page, run->context().log);
    TDOCK_RETURN_IF_ERROR(Refused(opened.status()));
    page = *std::move(opened);
    run->context().log(absl::StrCat("the page of this run is at ", page->url()));
  }
  return TrainFirst(*run, environment, page.get());
}

}  // namespace

absl::Status TrainWithRanksAndPage(const TrainArguments& arguments) {
  return arguments.keys ? TrainAlone(arguments, nullptr) : TrainHere(arguments);
}

}  // namespace tdock::cli
