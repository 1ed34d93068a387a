# Write job bodies as ActiveJob makes them for Backburner, into the current directory.
#
#     apt-get install ruby-activejob && ruby make_activejob.rb
#
# Backburner is not in Debian: the class Worker does what Backburner::Worker.enqueue does.

require "json"
require "active_job"
$LOADED_FEATURES << "backburner.rb"
require "active_job/queue_adapters/backburner_adapter"

BODIES = []

module Backburner
  class Worker
    def self.enqueue(job_class, args = [], opts = {})
      BODIES << { class: job_class.name, args: args }.to_json
    end
  end
end

ActiveJob::Base.logger = nil
ActiveJob::Base.queue_adapter = :backburner

class NewsletterSender
end

class UpstreamError < StandardError
end

class ChargeJob < ActiveJob::Base
  queue_as :billing
  retry_on UpstreamError, wait: 3, attempts: 5

  def perform(order, lines: [])
    raise UpstreamError, "HTTP 503 from upstream"
  end
end

def write(name, body)
  File.write("#{name}.body", body)
end

ChargeJob.perform_later(4711, lines: [{ "sku" => "a-1", "cents" => 995 }])
write("activejob", BODIES.last)
write("activejob-alone", JSON.dump(JSON.parse(BODIES.last)["args"][0]))
2.times { ActiveJob::Base.execute(JSON.parse(BODIES.last)["args"][0]) }
write("activejob-retried", BODIES.last)
Backburner::Worker.enqueue(NewsletterSender, [17, { "subject" => "Hello" }])
write("backburner", BODIES.last)
