#include "cli/interrupt.h"

#include <csignal>

namespace tdock::cli {
namespace {

std::atomic<bool> interrupted = false;
std::atomic<int> interrupted_by = 0;
std::atomic<bool> caught_one = false;
std::atomic<bool> save_asked = false;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may not take a lock");

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

const std::atomic<bool>& InterruptFlag() {
  for (int signal : {SIGINT, SIGTERM}) {
    Handle(signal, [](int by) {
      for (int ending : {SIGINT, SIGTERM}) Handle(ending, SIG_DFL);
      interrupted_by = by;
      interrupted = true;
    });
  }
  return interrupted;
}

int InterruptSignal() { return interrupted_by; }

InterruptCatcher::InterruptCatcher() {
  caught_one = false;
  Handle(SIGINT, [](int) { caught_one = true; });
}

InterruptCatcher::~InterruptCatcher() { Handle(SIGINT, SIG_DFL); }

bool InterruptCatcher::caught() const { return caught_one; }

std::atomic<bool>& SaveFlag() {
  Handle(SIGUSR1, [](int) { save_asked = true; });
  return save_asked;
}

}  // namespace tdock::cli
