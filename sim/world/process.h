// One simulated process: alive or not, running or paused, with a clock of its own. A process
// schedules every later action through Post, so that a crash cancels the action and a pause
// (SIGSTOP) delays it. Actions of a paused process wait, as data waits in the kernel's buffers.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "sim/world/world.h"

namespace tandem::sim {

class Process {
 public:
  using Action = sim::Action;

  Process(World& world, int id, std::string name, absl::Duration clock_offset)
      : world_(world), id_(id), name_(std::move(name)), clock_offset_(clock_offset) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int id() const { return id_; }
  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  // How many times it was started or ended, which distinguishes this life from earlier ones.
  uint64_t life() const { return life_; }
  absl::Time Now() const {
    return clock_offset_ == absl::ZeroDuration() ? world_.now() : world_.now() + clock_offset_;
  }

  void Start() {
    alive_ = true;
    ++life_;
    OnStart();
  }
  // Ends at once, as by kill -9.
  void Crash() {
    alive_ = false;
    ++life_;
    EndPause();
    held_.clear();
    OnCrash();
  }
  void Pause() {
    if (!alive_ || paused_) return;
    paused_ = true;
    paused_at_ = world_.now();
  }
  void Resume() {
    EndPause();
    // Actions that are held while these run wait for the next Resume.
    std::deque<Action> held = std::exchange(held_, {});
    const uint64_t life = life_;
    for (Action& action : held)
      if (life == life_) Run(std::move(action));
  }
  void SetSlowness(int64_t factor) {
    slowness_ = factor;
    slowness_max_ = std::max(slowness_max_, factor);
  }
  int64_t slowness() const { return slowness_; }
  int64_t slowness_max() const { return slowness_max_; }  // ever
  // The world's time without the pauses: it stands still while the process is paused.
  absl::Time RunningTime() const { return (paused_ ? paused_at_ : world_.now()) - paused_for_; }

  // Runs `action` (a callable without arguments) in this life of the process after `delay`, or
  // later if it is stopped then.
  template <typename Callable>
  void Post(absl::Duration delay, Callable action) {
    if (!alive_) return;
    world_.After(delay, [this, life = life_, action = std::move(action)]() mutable {
      if (life == life_) Run(std::move(action));
    });
  }
  // Runs `action` now, or later if the process is stopped; not at all if it is dead.
  template <typename Callable>
  void Deliver(Callable action) {
    if (alive_) Run(std::move(action));
  }

 protected:
  virtual void OnStart() = 0;
  virtual void OnCrash() = 0;
  World& world() { return world_; }

 private:
  template <typename Callable>
  void Run(Callable action) {
    if (paused_)
      held_.push_back(std::move(action));
    else
      action();
  }
  void EndPause() {
    if (paused_) paused_for_ += world_.now() - paused_at_;
    paused_ = false;
  }

  World& world_;
  const int id_;
  const std::string name_;
  const absl::Duration clock_offset_;
  bool alive_ = false;
  bool paused_ = false;
  uint64_t life_ = 0;
  absl::Time paused_at_;       // while paused
  absl::Duration paused_for_;  // by pauses that are over
  int64_t slowness_ = 1, slowness_max_ = 1;
  std::deque<Action> held_;
};

}  // namespace tandem::sim
