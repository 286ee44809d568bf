#include "trainer/reward/external/program_source.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/workers.h"
#include "trainer/reward/external/protocol.h"

namespace tdock::reward {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(100);

// Samples that are sent together.
using Batch = std::vector<size_t>;

// The samples of one call of Score(), and what became of them.
class Job {
 public:
  Job(std::span<const Answer> answers, const ProgramOptions& options, const SourceSink& sink)
      : options_(options), sink_(sink), samples_(answers.size()), left_(answers.size()) {
    const auto most = static_cast<size_t>(options.batch_size);
    for (size_t begin = 0; begin < answers.size(); begin += most) {
      Batch& batch = todo_.emplace_back();
      for (size_t i = begin; i < std::min(begin + most, answers.size()); ++i) batch.push_back(i);
    }
  }

  // The next batch, once there is one; nothing when the job is over. Looks at `check_stop` meanwhile.
  std::optional<Batch> Take(const StopCheck& check_stop) TDOCK_EXCLUDES(mu_) {
    for (;;) {
      const absl::Status stop = check_stop();
      MutexLock lock(mu_);
      if (failed_.ok()) failed_ = stop;
      if (!failed_.ok() || left_ == 0) return std::nullopt;
      if (!todo_.empty()) {
        Batch batch = std::move(todo_.front());
        todo_.pop_front();
        return batch;
      }
      changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kBetweenLooks);
    }
  }

  // A score from the program, or its error.
  void Note(size_t i, absl::StatusOr<SourceScore> score) {
    if (!score.ok()) return NoteTry(i, score.status(), IsRepeatable(score.status()));
    {
      MutexLock lock(mu_);
      Settle(i);
    }
    sink_(i, std::move(score));
  }

  // A try of this sample has failed: it is sent again, alone, or has no score.
  void NoteTry(size_t i, const absl::Status& why, bool repeatable = true) TDOCK_EXCLUDES(mu_) {
    absl::Status last;
    {
      MutexLock lock(mu_);
      Sample& sample = samples_[i];
      if (sample.settled) return;
      sample.reasons.push_back(absl::StrCat("try ", sample.reasons.size() + 1, ": ", why.message()));
      if (repeatable && std::cmp_less_equal(sample.reasons.size(), options_.retries)) {
        todo_.push_front({i});  // at once, so that a bad sample is known before others count as failures in a row
        changed_.NotifyAll();
        return;
      }
      last = absl::Status(why.code(), absl::StrJoin(sample.reasons, "; "));
      Settle(i);
    }
    sink_(i, last);
  }

  // The process has failed with a batch, of which it had not said anything about `open`; `alone`: that is all of it,
  // and one sample.
  void NoteFailure(const Batch& open, bool alone, const absl::Status& why) TDOCK_EXCLUDES(mu_) {
    // The first one is what a program that stands still is at. Otherwise nothing is known as long as they are several.
    const bool blamed = !open.empty() && (alone || absl::IsDeadlineExceeded(why));
    if (!open.empty() && !blamed) Queue(open);
    if (!blamed) return;
    Queue({open.begin() + 1, open.end()});
    NoteTry(open.front(), why);
  }

  // Ends the job. The first error counts.
  void Fail(const absl::Status& why) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (failed_.ok()) failed_ = why;
    changed_.NotifyAll();
  }
  absl::Status failed() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return failed_;
  }
  size_t batches() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return todo_.size();
  }
  // Sends these again, one by one.
  void Queue(const Batch& samples) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (const size_t i : samples) todo_.push_back({i});
    changed_.NotifyAll();
  }
  void QueueWhole(Batch batch) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    todo_.push_back(std::move(batch));
    changed_.NotifyAll();
  }

 private:
  struct Sample {
    bool settled = false;  // has its score, or will have none
    std::vector<std::string> reasons;
  };

  void Settle(size_t i) TDOCK_REQUIRES(mu_) {
    samples_[i].settled = true;
    if (--left_ == 0) changed_.NotifyAll();
  }

  const ProgramOptions& options_;
  const SourceSink& sink_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Batch> todo_ TDOCK_GUARDED_BY(mu_);
  std::vector<Sample> samples_ TDOCK_GUARDED_BY(mu_);
  size_t left_ TDOCK_GUARDED_BY(mu_);
  absl::Status failed_ TDOCK_GUARDED_BY(mu_);
};

// The notes that each process of a program says when it starts, such as how it calls a function, reach the log once.
ProgramOptions WithNotesOnce(ProgramOptions options) {
  struct Notes {
    Mutex mu;
    absl::flat_hash_set<std::string> said TDOCK_GUARDED_BY(mu);
  };
  constexpr size_t kMostKept = 100;
  options.log = [notes = std::make_shared<Notes>(), begin = absl::StrCat("reward ", options.name, ": note: "),
                 log = std::move(options.log)](const std::string& line) {
    if (absl::StartsWith(line, begin)) {
      MutexLock lock(notes->mu);
      if (notes->said.contains(line)) return;
      if (notes->said.size() < kMostKept) notes->said.insert(line);
    }
    log(line);
  };
  return options;
}

class ProgramSource final : public ScoreSource {
 public:
  explicit ProgramSource(ProgramOptions options) : options_(WithNotesOnce(std::move(options))) {}

  ~ProgramSource() override {
    for (const auto& program : idle_) program->CloseInput();  // so that they end at the same time
  }

  const std::string& name() const override { return options_.name; }

  absl::Status Score(std::span<const Answer> answers, const StopCheck& check_stop, const SourceSink& sink) override {
    Job job(answers, options_, sink);
    const int threads = static_cast<int>(std::min(static_cast<size_t>(options_.processes), job.batches()));
    if (threads == 0) return absl::OkStatus();
    Workers(threads).Run(threads, [&](int) {
      try {
        Work(answers, job, check_stop);
      } catch (...) {
        job.Fail(absl::AbortedError("another thread has failed"));  // nobody waits for its samples
        throw;
      }
    });
    return job.failed();
  }

 private:
  // Carries out batches with one process at a time.
  void Work(std::span<const Answer> answers, Job& job, const StopCheck& check_stop) {
    std::unique_ptr<RewardProgram> program = TakeIdle();
    const StopCheck stop = [&]() -> absl::Status {
      TDOCK_RETURN_IF_ERROR(job.failed());
      return check_stop();
    };
    while (std::optional<Batch> batch = job.Take(check_stop)) {
      if (program == nullptr) {
        absl::StatusOr<std::unique_ptr<RewardProgram>> started = RewardProgram::Start(options_, stop);
        if (!started.ok()) {
          job.QueueWhole(*std::move(batch));
          NoteFailure(started.status(), job, stop);
          continue;
        }
        program = *std::move(started);
        said_hello_ = true;
      }
      absl::flat_hash_set<size_t> said;  // of which the process has said something
      const absl::Status status = ScoreBatch(answers, *batch, *program, job, stop, said);
      if (status.ok()) continue;
      program.reset();
      Batch open = *batch;
      std::erase_if(open, [&](size_t i) { return said.contains(i); });
      if (stop().ok()) job.NoteFailure(open, batch->size() == 1, status);
      NoteFailure(status, job, stop);
    }
    if (program != nullptr) GiveIdle(std::move(program));
  }

  absl::Status ScoreBatch(std::span<const Answer> answers, const Batch& batch, RewardProgram& program, Job& job,
                          const StopCheck& stop, absl::flat_hash_set<size_t>& said) {
    size_t bytes = 0;
    for (const size_t i : batch) bytes += JsonText(SampleJson(answers[i], i)).size();
    if (bytes + 1000 > kMostLineBytes) {
      if (batch.size() > 1) {
        job.Queue(batch);
      } else {
        job.Note(batch[0], absl::InvalidArgumentError(absl::StrCat("the sample has ", bytes, " bytes as JSON; at most ",
                                                                   kMostLineBytes, " can be sent")));
      }
      return absl::OkStatus();
    }
    return program.Score(answers, batch, stop, [&](size_t i, absl::StatusOr<SourceScore> score) {
      if (score.ok()) failures_ = 0;
      said.insert(i);
      job.Note(i, std::move(score));
    });
  }

  std::string Named() const {
    return absl::StrCat(name(), options_.origin.empty() ? "" : absl::StrCat(" (", options_.origin, ")"));
  }

  // A process has failed.
  void NoteFailure(const absl::Status& why, Job& job, const StopCheck& stop) {
    if (const absl::Status stopped = stop(); !stopped.ok()) return job.Fail(stopped);
    const int64_t failures = ++failures_;
    if (!said_hello_) return job.Fail(Annotate(why, absl::StrCat("the reward program ", Named(), " did not start")));
    options_.log(absl::StrCat("reward ", name(), ": the program failed and is started again: ", why.message()));
    if (failures <= options_.max_restarts) return;
    job.Fail(Annotate(why, absl::StrCat("the reward program ", Named(), " failed ", failures,
                                        " times in a row without a score (reward.max_restarts); the last time")));
  }

  std::unique_ptr<RewardProgram> TakeIdle() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<RewardProgram> program = std::move(idle_.back());
    idle_.pop_back();
    return program;
  }
  void GiveIdle(std::unique_ptr<RewardProgram> program) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (std::cmp_less(idle_.size(), options_.processes)) idle_.push_back(std::move(program));
  }

  const ProgramOptions options_;
  std::atomic<bool> said_hello_ = false;
  std::atomic<int64_t> failures_ = 0;  // in a row
  Mutex mu_;
  std::vector<std::unique_ptr<RewardProgram>> idle_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<ScoreSource> MakeProgramSource(ProgramOptions options) {
  return std::make_unique<ProgramSource>(std::move(options));
}

}  // namespace tdock::reward
