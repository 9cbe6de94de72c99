// How a handler answers one HTTP request: the seam between the API and the server that carries it.
// A handler either calls Reply, or calls Wait and later streams from the PendingAnswer.
// Thread safety: any thread may call Post and RunOrPost. All other methods are called on the
// connection's I/O thread or from work that Post or RunOrPost runs; these exclude each other.
// Owner: shared by the connection's pending operations and the answer. After the client is gone
// calls have no effect.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

// An answer that comes later. The exchange owns it until the answer is complete.
class PendingAnswer {
 public:
  virtual ~PendingAnswer() = default;
  // The client is gone, or the server closed its connection. The last call.
  virtual void OnGone() = 0;
  // All bytes written so far are sent: the answer may write more.
  virtual void OnWritable() = 0;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Runs `work` on the I/O thread later. The server drops `work` after Stop.
  virtual void Post(absl::AnyInvocable<void()> work) = 0;
  // Like Post, but if the I/O thread is idle, the calling thread runs `work` before this returns.
  // REQUIRES: `work` is short and does not block.
  virtual void RunOrPost(absl::AnyInvocable<void()> work) = 0;

  // Announces that `answer` will write the reply. If the client is gone, calls its OnGone at once.
  // REQUIRES: at most once.
  virtual void Wait(std::shared_ptr<PendingAnswer> answer) = 0;
  // Sends a whole reply. REQUIRES: this request has no reply yet.
  virtual void Reply(HttpReply reply) = 0;
  // Sends the head of a streamed reply, and `reply.body`, the beginning of its body.
  // REQUIRES: as Reply.
  virtual void BeginStream(const HttpReply& reply) = 0;
  // Sends bytes of the body. REQUIRES: after BeginStream; not writing().
  virtual void WriteStream(absl::string_view bytes) = 0;
  // Sends the stream's last bytes and ends it. With `complete` false the connection is closed, so
  // that the client can tell that the answer broke off.
  virtual void EndStream(bool complete, absl::string_view bytes) = 0;
  // Whether earlier bytes are still being sent. If so, write no more until OnWritable.
  virtual bool writing() const = 0;
};

}  // namespace tandem::router
