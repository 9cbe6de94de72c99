// How a handler answers one HTTP request: the seam between the API and the server that carries it.
// Thread safety: everything on the connection's own I/O thread or in work run by RunOrPost, which
// is the same to a handler; except Post and RunOrPost: any thread. Lifetime: shared by the
// connection's operations and whoever still answers.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

// An answer that is given later. Owned by the exchange until the answer is complete.
class PendingAnswer {
 public:
  virtual ~PendingAnswer() = default;
  // The client is gone, or was cut off. Nothing is called after that.
  virtual void OnGone() = 0;
  // What was written has been sent: more may follow.
  virtual void OnWritable() = 0;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // Runs `work` on the I/O thread, soon. Any thread; dropped once the server stops.
  virtual void Post(absl::AnyInvocable<void()> work) = 0;
  // Like Post, but runs `work` before it returns if the I/O thread is at nothing: for little work.
  virtual void RunOrPost(absl::AnyInvocable<void()> work) = 0;

  // The answer comes later, from `answer`. REQUIRES: called by the handler, at most once.
  virtual void Wait(std::shared_ptr<PendingAnswer> answer) = 0;
  // The whole reply. REQUIRES: nothing was replied to this request yet.
  virtual void Reply(HttpReply reply) = 0;
  // The head of a reply whose body is streamed (`reply.body` is its beginning).
  virtual void BeginStream(const HttpReply& reply) = 0;
  // Bytes of the body. REQUIRES: BeginStream; not writing().
  virtual void WriteStream(absl::string_view bytes) = 0;
  // The stream's last bytes and its end; `complete` false closes the connection so that the client
  // can tell.
  virtual void EndStream(bool complete, absl::string_view bytes) = 0;
  // Earlier bytes are still on their way: hold yours back until OnWritable.
  virtual bool writing() const = 0;
};

}  // namespace tandem::router
