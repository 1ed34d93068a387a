"""Real job bodies of job frameworks, and the scripts that made them.

| files | script | versions |
|---|---|---|
| laravel*.body | make_laravel.php | PHP 8.2, Laravel 8.83 (Debian 12) |
| symfony*.body | make_symfony.php | PHP 8.2, Symfony Messenger 5.4 (Debian 12) |
| activejob*.body, backburner.body | make_activejob.rb | Ruby 3.1, ActiveJob 6.1 (Debian 12) |
| celery*.body | make_celery.py | Celery 5.7, Kombu 5.7 (PyPI) |

Each script writes into the current directory; its docstring or first comment says how to install the framework. Debian
does not have Backburner, and the scripts need no server: they repeat the steps of the only method that puts a job.
"""
