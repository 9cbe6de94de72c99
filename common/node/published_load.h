// What a node last told routers of its load. Two threads tell it: the engine thread with its
// events, and the heartbeat thread. A router believes what comes last, so no load may be sent after
// a newer one: each is sent before the next is published. Thread safety: any thread. Owner:
// NodeRuntime.
#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

class PublishedLoad {
 public:
  // For the next Send.
  void Set(v1::NodeLoad load) {
    absl::MutexLock lock(&mutex_);
    load_ = std::move(load);
  }
  // Publishes `load` and calls send(load), which must not wait for another thread that tells it.
  template <typename SendLoad>
  void Send(v1::NodeLoad load, SendLoad send) {
    absl::MutexLock lock(&mutex_);
    load_ = std::move(load);
    send(load_);
  }
  // Calls send with what was published last.
  template <typename SendLoad>
  void SendAgain(SendLoad send) {
    absl::MutexLock lock(&mutex_);
    send(load_);
  }

 private:
  absl::Mutex mutex_;
  v1::NodeLoad load_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::node
