<?php

/**
 * Write job bodies as Symfony Messenger makes them, into the current directory.
 *
 *     apt-get install php-cli php-symfony-messenger php-symfony-serializer php-symfony-property-access \
 *         php-symfony-error-handler && php make_symfony.php
 *
 * `body` does what Connection::send of the transport for beanstalkd does. `make test-clients` puts with the transport.
 */

namespace App\Message {
    final class SendInvoice
    {
        public function __construct(private string $to, private int $order, private array $lines = [])
        {
        }

        public function getTo(): string
        {
            return $this->to;
        }

        public function getOrder(): int
        {
            return $this->order;
        }

        public function getLines(): array
        {
            return $this->lines;
        }
    }
}

namespace {
    require '/usr/share/php/Symfony/Component/Messenger/autoload.php';
    require '/usr/share/php/Symfony/Component/Serializer/autoload.php';
    require '/usr/share/php/Symfony/Component/PropertyAccess/autoload.php';
    require '/usr/share/php/Symfony/Component/ErrorHandler/autoload.php';

    use App\Message\SendInvoice;
    use Symfony\Component\Messenger\Envelope;
    use Symfony\Component\Messenger\Stamp\BusNameStamp;
    use Symfony\Component\Messenger\Stamp\ErrorDetailsStamp;
    use Symfony\Component\Messenger\Stamp\RedeliveryStamp;
    use Symfony\Component\Messenger\Stamp\SentToFailureTransportStamp;
    use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
    use Symfony\Component\Messenger\Transport\Serialization\Serializer;

    function charge(): Throwable
    {
        try {
            throw new RuntimeException('HTTP 503 from "upstream"', 503);
        } catch (RuntimeException $error) {
            return $error;
        }
    }

    function body(array $encoded): string
    {
        return json_encode(['body' => $encoded['body'], 'headers' => $encoded['headers'] ?? []], JSON_THROW_ON_ERROR);
    }

    $message = new SendInvoice('zoë@example.org', 4711, [['sku' => 'a-1', 'cents' => 995]]);
    $new = new Envelope($message, [new BusNameStamp('messenger.bus.default')]);
    $failed = $new->with(
        new SentToFailureTransportStamp('async'),
        new RedeliveryStamp(1),
        new RedeliveryStamp(2),
        ErrorDetailsStamp::create(charge())
    );
    foreach (['php' => new PhpSerializer, 'json' => Serializer::create()] as $format => $serializer) {
        file_put_contents("symfony-$format.body", body($serializer->encode($new)));
        file_put_contents("symfony-$format-failed.body", body($serializer->encode($failed)));
    }
    $binary = new Envelope(new SendInvoice("\xff", 1));
    file_put_contents('symfony-php-base64.body', body((new PhpSerializer)->encode($binary)));
}
