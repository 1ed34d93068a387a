<?php

/**
 * Write job bodies as Laravel's queue makes them, into the current directory.
 *
 *     apt-get install php-cli php-laravel-framework && php make_laravel.php
 */

namespace {
    require '/usr/share/php/Illuminate/Queue/autoload.php';
    require '/usr/share/php/Illuminate/Database/autoload.php';
    require '/usr/share/php/Illuminate/Bus/autoload.php';
    require '/usr/share/php/Illuminate/Encryption/autoload.php';
}

namespace App\Models {
    class User extends \Illuminate\Database\Eloquent\Model
    {
    }
}

namespace App\Jobs {
    use App\Models\User;
    use Illuminate\Bus\Queueable;
    use Illuminate\Contracts\Queue\ShouldBeEncrypted;
    use Illuminate\Contracts\Queue\ShouldQueue;
    use Illuminate\Queue\InteractsWithQueue;
    use Illuminate\Queue\SerializesModels;

    enum Urgency: string
    {
        case High = 'high';
    }

    class SendMail implements ShouldQueue
    {
        use InteractsWithQueue;
        use Queueable;

        public $tries = 5;

        protected $options = ['html' => true, 'cc' => ['ops@example.org', 'dev@example.org'], 3 => 1.5];

        private $attachments = [];

        public function __construct(public string $to, public int $order, public Urgency $urgency, public ?\stdClass $extra = null)
        {
        }
    }

    class ChargeUser implements ShouldQueue
    {
        use Queueable;
        use SerializesModels;

        public function __construct(public User $user, public array $lines)
        {
        }
    }

    class Secret extends SendMail implements ShouldBeEncrypted
    {
    }
}

namespace {

    use App\Jobs\ChargeUser;
    use App\Jobs\Secret;
    use App\Jobs\SendMail;
    use App\Jobs\Urgency;
    use App\Models\User;

    class BodyQueue extends Illuminate\Queue\NullQueue
    {
        public function body($job, $data = '')
        {
            return $this->createPayload($job, 'default', $data);
        }
    }

    $container = new Illuminate\Container\Container;
    $container->instance(
        Illuminate\Contracts\Encryption\Encrypter::class,
        new Illuminate\Encryption\Encrypter(str_repeat('k', 32), 'AES-256-CBC')
    );
    $queue = new BodyQueue;
    $queue->setContainer($container);
    $write = fn ($name, $body) => file_put_contents("$name.body", $body);

    $mail = new SendMail('zoë@example.org', 4711, Urgency::High, (object) ['note' => "a \"quoted\"\nline"]);
    $write('laravel', $queue->body($mail->onQueue('mail')));
    $user = (new User)->forceFill(['id' => 17]);
    $user->exists = true;
    $write('laravel-model', $queue->body(new ChargeUser($user, [['sku' => 'a-1', 'cents' => 995]])));
    $write('laravel-encrypted', $queue->body(new Secret('a@example.org', 1, Urgency::High)));
    $write('laravel-string', $queue->body('App\Jobs\Import@handle', ['file' => 'orders.csv']));
}
