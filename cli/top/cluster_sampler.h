// Asks a router for its status and its requests on a thread of its own: the command
// goes on reading keys while a router does not answer.
// Thread safety: thread-safe. Owner: `tandem top`.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/client/client.h"
#include "cli/top/cluster_sample.h"
#include "common/runtime/thread.h"

namespace tandem::cli {

class ClusterSampler {
 public:
  // Requests that one look asks for, and the time that each of its two calls gets.
  static constexpr int32_t kRequests = 100;
  static constexpr absl::Duration kCallTimeout = absl::Seconds(2);

  // Looks at once, and then `every` so often. `client` outlives this object.
  ClusterSampler(Client& client, absl::Duration every);
  // Returns after the look that is under way: kCallTimeout at most for each of its calls.
  ~ClusterSampler();

  ClusterView View() const;
  // Looks now instead of when the interval ends. While paused, looks happen only so.
  void LookNow();
  void SetPaused(bool paused);

 private:
  void Run();
  void Look();

  Client& client_;
  const absl::Duration every_;
  mutable absl::Mutex mutex_;
  ClusterView view_ ABSL_GUARDED_BY(mutex_);
  bool wanted_ ABSL_GUARDED_BY(mutex_) = true;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace tandem::cli
